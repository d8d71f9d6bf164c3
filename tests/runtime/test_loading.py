"""From a path to a running service, with a fake bundle and the scripted executor where native code would be."""

from __future__ import annotations

import json
import queue
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.artifacts import reader
from tandem.errors import BundleCorrupt, BundleError, BundleMismatch, UsageError
from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime import loading
from tandem.runtime.delivery import End, Event
from tandem.runtime.drafters.shelf_options import ShelfOptions
from tandem.runtime.loading import LoadOptions, kv_pages, load, read_tokenizer
from tandem.runtime.reading.formats import Format
from tandem.runtime.relaxed import Relaxation
from tandem.runtime.router.baselines import BudgetRouter, FixedRouter
from tandem.runtime.router.staircut import StairCut
from tests.artifacts.corpora import write
from tests.bundles import state_home
from tests.loaded import CAPACITIES, stand_in
from tests.service import IM_END, PATIENCE, TEMPLATE, byte_tokenizer


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    return stand_in(tmp_path, monkeypatch)


@pytest.mark.parametrize("drafter", ["lookup", "none"])
def test_a_loaded_bundle_answers(bundle: list[dict[str, Any]], drafter: Any) -> None:
    service = load(Path("x"), LoadOptions(drafter=drafter, served_model_name="mine"))
    try:
        assert (service.model, service.context_length, service.stop_ids) == ("mine", 128, {IM_END})
        events: queue.Queue[Event] = queue.Queue()
        prompt = service.encode("abc", add_special_tokens=True)
        service.submit(service.request(prompt, max_tokens=30), ["56"], events.put)
        text = ""
        while not isinstance(event := events.get(timeout=PATIENCE), End):
            text += event.text
        assert text + event.text == "34"
        assert event.ids == tuple(b"3456")
    finally:
        service.worker.stop()


def test_a_corpus_is_looked_up_in(bundle: list[dict[str, Any]], tmp_path: Path) -> None:
    write(tmp_path / "c", [b"xyz0123456789012345678901234567890123456789"], vocab_size=258)
    service = load(Path("x"), LoadOptions(shelves=ShelfOptions((tmp_path / "c",)), learn_cost=False))
    try:
        ends: queue.Queue[Event] = queue.Queue()
        service.submit(service.request(tuple(b"abc"), max_tokens=14), [], ends.put)
        while not isinstance(ends.get(timeout=PATIENCE), End):
            pass
        assert service.worker.meter.accepted_by.values["corpus"] > 0
    finally:
        service.worker.stop()


def test_a_corpus_that_was_asked_for_and_does_not_fit_is_an_error(bundle: list[dict[str, Any]], tmp_path: Path) -> None:
    write(tmp_path / "c", [b"abc"], vocab_size=258, tokenizer="cd" * 32)
    for path, error, part in (("c", BundleMismatch, "tokenizer cdcdcdcd"), ("d", BundleError, "nothing there")):
        with pytest.raises(error, match=part):
            load(Path("x"), LoadOptions(shelves=ShelfOptions((tmp_path / path,))))
    with pytest.raises(UsageError, match="--drafter none"):
        load(Path("x"), LoadOptions(shelves=ShelfOptions((tmp_path / "c",)), drafter="none"))
    assert bundle == []  # told before anything is loaded


def test_relaxed_rules_are_loud(bundle: list[dict[str, Any]], caplog: pytest.LogCaptureFixture) -> None:
    for rule in (None, Relaxation(0.5)):
        caplog.clear()
        service = load(Path("x"), LoadOptions(relaxation=rule))
        service.worker.stop()
        warned = [record.getMessage() for record in caplog.records if "RELAXED" in record.getMessage()]
        assert len(warned) == (rule is not None) and service.fingerprint.endswith("-relaxed-tau0.5") == bool(warned)
        assert all("(relaxed-tau0.5)" in text and "no longer the model's" in text for text in warned)


def test_options_bound_the_service(bundle: list[dict[str, Any]]) -> None:
    service = load(Path("x"), LoadOptions(max_num_seqs=1, max_model_len=64, threads=3))
    service.worker.stop()
    assert service.context_length == 64
    assert bundle == [{"threads": 3, "num_pages": (64 + MAX_TREE_ROWS) // CAPACITIES.page_tokens, "num_slots": 1}]


@pytest.mark.parametrize(
    ("template", "options", "form", "thoughts"),
    [
        (TEMPLATE, LoadOptions(), Format.HERMES, False),
        (TEMPLATE, LoadOptions(tool_call_parser="llama", reasoning_parser="think"), Format.LLAMA, True),
        ("<function=f> <think>", LoadOptions(), Format.QWEN_XML, True),
        ("<function=f> <think>", LoadOptions(tool_call_parser="hermes", reasoning_parser="none"), Format.HERMES, False),
    ],
)
def test_how_answers_are_read(
    bundle: list[dict[str, Any]], template: str, options: LoadOptions, form: Format, thoughts: bool
) -> None:
    """As the template has it, or as the user says."""
    reader.open_bundle(Path("x")).manifest.tokenizer.chat_template = template
    service = load(Path("x"), options)
    service.worker.stop()
    assert (service.call_format, service.thinks) == (form, thoughts)


@pytest.mark.parametrize("options", [LoadOptions(max_num_seqs=3), LoadOptions(max_model_len=129)])
def test_options_beyond_the_bundle(bundle: list[dict[str, Any]], options: LoadOptions) -> None:
    with pytest.raises(UsageError, match="this bundle"):
        load(Path("x"), options)
    assert bundle == []


def test_a_router_is_known_by_its_name_before_anything_is_loaded(bundle: list[dict[str, Any]]) -> None:
    with pytest.raises(UsageError, match="fixed:ROWS"):
        load(Path("none"), LoadOptions(router="fixed:40"))
    assert bundle == []


@pytest.mark.parametrize(("name", "kind"), [("staircut", StairCut), ("budget", BudgetRouter), ("fixed:4", FixedRouter)])
@pytest.mark.parametrize("learn_cost", [True, False])
def test_the_router_asked_for_serves(
    bundle: list[dict[str, Any]], name: str, kind: type[Any], learn_cost: bool
) -> None:
    service = load(Path("x"), LoadOptions(router=name, learn_cost=learn_cost))
    service.worker.stop()
    engine = service.worker._engine
    assert type(engine.router) is kind
    before = engine.prices.ms(100, Kind.EXTEND, 1)
    engine.prices.observe(100, Kind.EXTEND, 1, 2 * before)
    assert (engine.prices.ms(100, Kind.EXTEND, 1) > before) is learn_cost


def test_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    def machine(memory: int) -> None:
        monkeypatch.setattr(loading, "this_machine", lambda: SimpleNamespace(memory=memory, cores=1))

    lane = (100 + MAX_TREE_ROWS + 7) // 8
    machine(2**40)
    assert kv_pages(CAPACITIES, 100, 2) == 2 * lane
    machine(2 * CAPACITIES.page_bytes * (lane + 1))
    assert kv_pages(CAPACITIES, 100, 2) == lane + 1
    hybrid = replace(CAPACITIES, recurrent_layers=1, state_bytes=3 * CAPACITIES.page_bytes, factor_bytes=4)
    assert kv_pages(hybrid, 100, 1) == lane
    machine(2 * CAPACITIES.page_bytes * (lane + 7))
    assert kv_pages(hybrid, 100, 2) == lane + 1, "two states take six pages"
    machine(0)
    assert kv_pages(CAPACITIES, 100, 2) == lane


def test_what_is_no_bundle_and_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="nothing there"):
        load(tmp_path / "none")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BundleCorrupt, match=r"tokenizer\.json"):
        read_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "zz"}},
    ],
    ids=["panics when read", "encodes nothing"],
)
def test_tokenizers_that_fail_are_refused_at_load(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(byte_tokenizer().to_str()) | change))
    with pytest.raises(BundleCorrupt, match="not a tokenizer"):
        read_tokenizer(path)


@pytest.mark.smollm2
def test_smollm2_knows_the_capital_of_france(smollm2_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(state_home()))
    service = load(smollm2_bundle, LoadOptions(max_num_seqs=1, max_model_len=256))
    try:
        events: queue.Queue[Event] = queue.Queue()
        text = service.chat.render([{"role": "user", "content": "What is the capital of France?"}])
        prompt = service.encode(text, add_special_tokens=False)
        service.submit(service.request(prompt, max_tokens=32), [], events.put)
        pieces = []
        while not isinstance(event := events.get(timeout=10 * PATIENCE), End):
            pieces.append(event.text)
        assert "".join([*pieces, event.text]) == "The capital of France is Paris."
        assert event.reason == "stop" and event.stats.prompt_tokens == len(prompt)
    finally:
        service.worker.stop()
