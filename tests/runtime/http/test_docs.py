"""docs/api.md says of every field what the code does."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

from tandem.keys import DRAFTER_KINDS
from tandem.runtime.drafters.base import MODELS
from tandem.runtime.drafters.rates import SOURCES
from tandem.runtime.engine import Engine
from tandem.runtime.grammar.guide import SOURCE as GRAMMAR
from tandem.runtime.http.app import build_app
from tandem.runtime.http.fields import NEUTRAL, WITHOUT_EFFECT
from tandem.runtime.http.live import Live
from tandem.runtime.http.schema import ChatBody, CompletionBody
from tandem.runtime.http.tokens import DetokenizeBody, TokenizeBody
from tandem.runtime.live import Occupancy, Totals
from tandem.runtime.meter import REASONS, ROUNDS, Lost, Plain
from tandem.runtime.thinking import watcher
from tandem.runtime.thinking.budget import PERCENT
from tandem.runtime.thinking.guide import REASONS as REASONS_TO_CLOSE
from tandem.runtime.thinking.guide import SOURCE as CLOSING
from tandem.runtime.worker import Worker
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import ScriptedExecutor
from tests.service import ScriptedWorker, scripted_service

PAGE = Path(__file__).resolve().parents[3] / "docs" / "api.md"


def cells(header: str) -> list[list[str]]:
    """The table of docs/api.md whose first column is `header`."""
    table = PAGE.read_text().split(f"| {header} |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def rows() -> list[tuple[str, str, str, str]]:
    """(field, treatment, endpoint, values) of the table of fields."""
    return [(name.strip("`"), treatment, endpoint, values) for name, treatment, endpoint, values in cells("field")]


def test_every_field_stands_once() -> None:
    names = [name for name, *_ in rows()]
    honoured = {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__}
    assert sorted(names) == sorted(honoured | {*NEUTRAL, *WITHOUT_EFFECT})


def test_treatments() -> None:
    chat, completions = set(ChatBody.__struct_fields__), set(CompletionBody.__struct_fields__)
    for name, treatment, endpoint, values in rows():
        if treatment == "honoured":
            where = {"both": chat & completions, "chat": chat - completions, "completions": completions - chat}
            assert name in where[endpoint]
        elif treatment == "neutral":
            shown = [json.loads(value.strip("` ")) for value in values.split("`, `")]
            assert shown == [None, *NEUTRAL[name]]
        else:
            assert treatment == "without effect" and name in WITHOUT_EFFECT


def test_every_field_of_a_conversion_stands_once() -> None:
    tokenize, detokenize = set(TokenizeBody.__struct_fields__), set(DetokenizeBody.__struct_fields__)
    where = {"both": tokenize & detokenize, "tokenize": tokenize - detokenize, "detokenize": detokenize - tokenize}
    found = [(name.strip("`"), endpoint) for name, endpoint, _ in cells("field of a conversion")]
    assert sorted(found) == sorted((name, endpoint) for endpoint, names in where.items() for name in names)


def test_every_path_stands_once() -> None:
    routes = build_app(scripted_service(ScriptedWorker()))._app.routes
    written = re.findall(r"`(GET|POST) (/\S*)`", " ".join(line for [line, *_] in cells("endpoint")))
    served = [(method, route.path) for route in routes for method in route.methods - {"HEAD"}]
    assert sorted(written) == sorted((method, path.replace("{name:path}", "{id}")) for method, path in served)


def test_every_live_figure_stands_once() -> None:
    parts = {"now": Occupancy, "totals": Totals}
    served = [name for name in Live.__struct_fields__ if name not in parts]
    served += [f"{name}.{field.name}" for name, part in parts.items() for field in fields(part)]
    written = [name for names, _ in cells("figure") for name in re.findall(r"`([\w.]+)`", names)]
    assert sorted(written) == sorted(served)


def test_every_metric_stands_once_with_its_labels() -> None:
    engine = Engine(ScriptedExecutor(), drafters=None, prices=FreePrices(), router=EvenRouter())
    served = [(family.name, family.kind) for family in Worker(engine).metrics()]
    table = cells("metric")
    assert [(name.strip("`"), kind) for name, kind, _ in table] == served
    says = {name.strip("`"): set(re.findall(r"`(\w+)`", text)) for name, _, text in table}
    assert says["request_success_total"] == {"finished_reason", *REASONS.values()}
    assert says["thinking_closed_total"] == {"reason", *REASONS_TO_CLOSE}
    assert says["rounds_total"] == {"kind", *ROUNDS.values()}
    assert says["plain_rounds_total"] == {"reason", *Plain}
    assert says["spec_decode_num_draft_tokens_per_source_total"] == {"source", *SOURCES, *MODELS, GRAMMAR, CLOSING}
    assert says["spec_decode_num_lost_drafters_total"] == {"reason", *Lost}
    assert says["spec_decode_passes_total"] == {"kind", *DRAFTER_KINDS}


def test_efforts_and_bounds_of_thoughts() -> None:
    values = next(values for name, _, _, values in rows() if name == "reasoning_effort")
    names, shares = values.split(":")[0].split(", "), re.findall(r"\d+", values)
    assert list(zip(names, map(int, shares), strict=True)) == list(PERCENT.items())
    thinking = (PAGE.parent / "thinking.md").read_text()
    for name, value in re.findall(r"`([A-Z]+_[A-Z]+)` ([\d.,]+\d)", thinking):
        assert getattr(watcher, name) == float(value.replace(",", ""))
    assert len(re.findall(r"`[A-Z]+_[A-Z]+`", thinking)) == 9
