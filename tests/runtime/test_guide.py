"""Guides of a request: drafts spare what they forbid, and rows that they leave alone cost nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pytest

from tandem.errors import TandemError
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.engine import Engine
from tandem.runtime.request import FinishReason, Request
from tests.fake_guide import Remainders, forbidden
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import Recorder, ScriptedExecutor, geometry, marks, plain_text, row_logits

VOCAB, CONTEXT = geometry().vocab_size, geometry().context_length
REQUEST = Request((7, 3), 40, guides=(Remainders,))


def served(request: Request, guess: Guess, monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, int, int]:
    """The answer, drafted rows that were verified, and rows of logits that were read."""
    executor, read = ScriptedExecutor(), list[int]()
    logits = executor.logits
    monkeypatch.setattr(executor, "logits", lambda output: read.append(output) or logits(output))
    answers = {request.prompt: plain_text(request, VOCAB, CONTEXT)}
    drafter = lambda: ScriptedDrafter(answers, [guess], VOCAB, 0)  # noqa: E731
    engine = Engine(executor, drafters=drafter, router=EvenRouter(), prices=FreePrices())
    engine.submit(request, sink := Recorder())
    while engine.step():
        pass
    assert sink.stats is not None and sink.ids == answers[request.prompt]
    return sink, sink.stats.drafted, len(read)


def test_only_rows_whose_largest_a_guide_forbids_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, _, read = served(REQUEST, Guess(0, 0, 0), monkeypatch)
    text = [*REQUEST.prompt, *sink.ids]
    below, first = marks(text), len(REQUEST.prompt)
    largest = {length: int(row_logits(below[length - 1], VOCAB).argmax()) for length in range(first, len(text))}
    assert read == sum(token in forbidden(text[:length], VOCAB) for length, token in largest.items())


def test_drafts_are_cut_where_a_guide_forbids_them(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Guess(0, 6, 5)  # wrong from the first token on, in several branches
    _, cut, _ = served(REQUEST, wide, monkeypatch)
    _, whole, _ = served(Request((7, 3), 40, guides=(Remainders.lax,)), wide, monkeypatch)
    assert 0 < cut < whole


class Broken(Remainders):
    """Fails as a bug would: at its birth, or at the fourth token of the answer, when that is drawn or taken in."""

    where = "applied"

    def __init__(self, prompt: Sequence[int], stop_ids: Collection[int]) -> None:
        if self.where == "init":
            raise IndexError("off by one")
        super().__init__(prompt, stop_ids)

    def changes(self, said: Sequence[int]) -> bool:
        return True

    def keeps(self, token: int, said: Sequence[int]) -> bool:
        return False

    def applied(self, logits: np.ndarray, said: Sequence[int]) -> np.ndarray:
        if self.where == "applied" and len(self._text) + len(said) == 5:
            raise IndexError("off by one")
        return super().applied(logits, said)

    def extend(self, tokens: Sequence[int]) -> None:
        super().extend(tokens)
        if self.where == "extend" and len(self._text) >= 6:
            raise IndexError("off by one")


@pytest.mark.parametrize(("where", "count"), [("init", 0), ("applied", 3), ("extend", 4)])
def test_a_guide_that_is_wrong_ends_its_own_request(
    where: str, count: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Broken, "where", where)
    engine = Engine(ScriptedExecutor(), drafters=None, router=EvenRouter(), prices=FreePrices())
    engine.submit(Request((7, 3), 40, guides=(Broken,)), broken := Recorder())
    engine.submit(REQUEST, sound := Recorder())
    while engine.step():
        pass
    wanted = plain_text(REQUEST, VOCAB, CONTEXT)
    assert (sound.ids, sound.reason) == (wanted, FinishReason.LENGTH)
    assert (broken.ids, broken.reason) == (wanted[:count], FinishReason.ERROR)
    assert isinstance(broken.error, TandemError) and "off by one" in str(broken.error)
    assert "a guide failed" in caplog.text
