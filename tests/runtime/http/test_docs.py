"""docs/api.md says of every field what the code does."""

from __future__ import annotations

import json
from pathlib import Path

from tandem.runtime.http.fields import NEUTRAL, WITHOUT_EFFECT
from tandem.runtime.http.schema import ChatBody, CompletionBody

PAGE = Path(__file__).resolve().parents[3] / "docs" / "api.md"


def rows() -> list[tuple[str, str, str, str]]:
    """(field, treatment, endpoint, values) of the table of fields."""
    table = PAGE.read_text().split("| field |")[1].split("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return [(name.strip("`"), treatment, endpoint, values) for name, treatment, endpoint, values in cells]


def test_every_field_stands_once() -> None:
    names = [name for name, *_ in rows()]
    honoured = {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__}
    assert sorted(names) == sorted([*honoured, *NEUTRAL, *WITHOUT_EFFECT])


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
