"""What drafters hand on when a text is over: requests in the suffix store, found again, as plain as without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.drafters.rates import STORE
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.drafters.shelf_options import ShelfOptions
from tandem.runtime.drafters.shelves import open_shelves
from tandem.runtime.engine import Engine
from tandem.runtime.request import FinishReason, Request
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import Recorder, ScriptedExecutor, geometry, plain_text
from tests.runtime.drafters.stores import TOKENIZER, VOCAB, documents, until

CONTEXT = geometry().context_length


def served(folder: Path, request: Request, scope: str, *, wait: bool) -> tuple[list[int], float]:
    """The answer of an engine with a store in `folder`, and the tokens of it that the store guessed."""
    shelves = open_shelves(ShelfOptions(store=folder, store_scope=scope), TOKENIZER, VOCAB)  # type: ignore[arg-type]
    (store,) = shelves.lookup["shelves"]
    if wait:
        until(lambda: store.table is not None)
    make = lookup_drafters(**shelves.lookup)
    engine = Engine(ScriptedExecutor(), drafters=make, prices=FreePrices(), router=EvenRouter())
    sink = Recorder()
    engine.submit(request, sink)
    while engine.step():
        pass
    for close in shelves.closing:
        close()
    return sink.ids, engine.meter.accepted_by.values.get(STORE, 0)


@pytest.mark.parametrize("scope", ["all", "outputs"])
def test_requests_are_kept_and_the_same_one_is_answered_from_the_store(tmp_path: Path, scope: str) -> None:
    request = Request(prompt=(1, 2, 3, 4, 5), max_tokens=30)
    answer = plain_text(request, VOCAB, CONTEXT)
    assert served(tmp_path / "s", request, scope, wait=False) == (answer, 0)
    assert documents(tmp_path / "s") == [[*request.prompt, *answer] if scope == "all" else answer]
    ids, guessed = served(tmp_path / "s", request, scope, wait=True)
    assert ids == answer and guessed > 15


def test_a_cancelled_request_is_kept_as_far_as_it_came(tmp_path: Path) -> None:
    shelves = open_shelves(ShelfOptions(store=tmp_path / "s"), TOKENIZER, VOCAB)
    engine = Engine(
        ScriptedExecutor(), drafters=lookup_drafters(**shelves.lookup), prices=FreePrices(), router=EvenRouter()
    )
    sink = Recorder()
    ticket = engine.submit(Request(prompt=(1, 2, 3), max_tokens=30), sink)
    engine.submit(Request(prompt=(7, 8, 9), max_tokens=3, speculate=False), Recorder())
    for _ in range(4):
        engine.step()
    engine.cancel(ticket)
    while engine.step():
        pass
    for close in shelves.closing:
        close()
    (kept,) = documents(tmp_path / "s")  # a request without drafts has no drafter
    assert kept[:3] == [1, 2, 3] and kept[3:] == sink.ids != []


class Ending(ScriptedDrafter):
    """Counts the texts that are over, and then fails."""

    ended = 0

    def end(self) -> None:
        Ending.ended += 1
        raise ValueError("too late to matter")


def test_a_drafter_hears_once_that_its_text_is_over(caplog: pytest.LogCaptureFixture) -> None:
    Ending.ended = 0
    engine = Engine(
        ScriptedExecutor(), drafters=lambda: Ending({}, [Guess()], VOCAB), prices=FreePrices(), router=EvenRouter()
    )
    sinks = [Recorder() for _ in range(3)]
    tickets = [engine.submit(Request((1, 2), 5), sink) for sink in sinks]
    engine.step()
    engine.cancel(tickets[0])
    while engine.step():
        pass
    assert Ending.ended == 3
    assert [sink.reason for sink in sinks] == [FinishReason.CANCELLED, FinishReason.LENGTH, FinishReason.LENGTH]
    assert "goes on without" in caplog.text
