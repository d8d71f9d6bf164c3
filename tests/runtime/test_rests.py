"""Rounds in which a lane's copies rest: nothing is asked of its drafter, which hears later of what came meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.engine import Engine
from tandem.runtime.request import Request
from tandem.tree import DraftTree
from tests.fake_guide import Remainders
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import Recorder, ScriptedExecutor, geometry, plain_text

VOCAB, CONTEXT = geometry().vocab_size, geometry().context_length


class Resting(EvenRouter):
    """Lets copies rest for `rests` rounds, one number after another, and hears of rounds that asked for some."""

    def __init__(self, *rests: int) -> None:
        super().__init__()
        self._rests = list(rests)
        self.passed_rounds, self.settled = 0, 0

    def rests(self, lane: int, context: int) -> int:
        return self._rests.pop(0) if self._rests else 0

    def settle(self, committed: list[list[int]], ms: float, asked_ms: float, host_ms: float) -> None:
        super().settle(committed, ms, asked_ms, host_ms)
        assert 0 < asked_ms < ms and 0 <= host_ms < ms
        self.settled += 1

    def passed(self, lanes: list[int], contexts: list[int], ms: float, asked_ms: float, host_ms: float) -> None:
        super().passed(lanes, contexts, ms, asked_ms, host_ms)
        self.passed_rounds += 1


class Hearing(ScriptedDrafter):
    """Keeps what it is asked and told."""

    def __init__(self, request: Request, guess: Guess) -> None:
        super().__init__({request.prompt: plain_text(request, VOCAB, CONTEXT)}, [guess], VOCAB)
        self.said: list[str] = []
        self.told: list[int] = []

    def propose(self, max_nodes: int) -> list[DraftTree]:
        self.said.append("propose")
        return super().propose(max_nodes)

    def observe(self, tokens: Sequence[int]) -> None:
        self.said.append(f"observe {len(tokens)}")
        self.told += tokens
        super().observe(tokens)

    def end(self) -> None:
        self.said.append("end")


def served(request: Request, router: EvenRouter, guess: Guess) -> tuple[Hearing, Recorder, Engine]:
    drafter = Hearing(request, guess)
    engine = Engine(ScriptedExecutor(), drafters=lambda: drafter, router=router, prices=FreePrices())
    engine.submit(request, sink := Recorder())
    while engine.step():
        pass
    assert sink.ids == drafter.told == plain_text(request, VOCAB, CONTEXT)
    return drafter, sink, engine


def test_a_drafter_that_rests_is_not_asked_and_told_late() -> None:
    """The prefill's token, a round that looks, three that rest, and so on."""
    drafter, _, engine = served(Request((1, 2, 3), 10), router := Resting(0, 3, 0, 2), Guess(1))
    looks = ["propose", "observe 2"]
    assert drafter.said == ["observe 1", *looks, "observe 3", *looks, "observe 2", "end"]
    assert {why: n for why, n in engine.meter.plain_rounds.values.items() if n} == {"rests": 5}
    assert (router.settled, router.passed_rounds) == (2, 0)


def test_a_round_that_finds_nothing_is_told_of_and_one_that_rests_is_not() -> None:
    drafter, _, engine = served(Request((1, 2, 3), 6), router := Resting(0, 2, 0), Guess())
    assert drafter.said.count("propose") == 2
    assert (router.settled, router.passed_rounds) == (0, 3)  # the last token needs no guess, but nobody knew
    assert {why: n for why, n in engine.meter.plain_rounds.values.items() if n} == {"rests": 2, "no_guess": 3}


def test_guides_go_on_telling_what_they_know() -> None:
    class Sure(Remainders):
        """Knows the next token, and says so in every round."""

        def cut(self, tree: DraftTree) -> DraftTree:
            ahead = wanted[len(self._text) - len(request.prompt) :]
            return DraftTree.chain(tree.tokens[0], ahead[:1], [1.0], "forced")

        def changes(self, said: Sequence[int]) -> bool:
            return False

        def applied(self, logits: np.ndarray, said: Sequence[int]) -> np.ndarray:
            return logits

    request = Request((1, 2, 3), 12, guides=(Sure,))
    wanted = plain_text(Request((1, 2, 3), 12), VOCAB, CONTEXT)
    drafter = Hearing(Request((1, 2, 3), 12), Guess(3))
    engine = Engine(ScriptedExecutor(), drafters=lambda: drafter, router=Resting(99), prices=FreePrices())
    engine.submit(request, sink := Recorder())
    while engine.step():
        pass
    assert sink.ids == drafter.told == wanted and "propose" not in drafter.said
    assert sink.stats is not None and sink.stats.accepted == sink.stats.drafted == 5


def test_every_lane_rests_by_itself() -> None:
    requests = [Request((n, 2, 3), 12) for n in (1, 4)]
    drafters = [Hearing(request, Guess(2)) for request in requests]
    made = iter(drafters)

    class First(Resting):
        def rests(self, lane: int, context: int) -> int:
            return 100 if lane == 0 else 0

    engine = Engine(ScriptedExecutor(), drafters=lambda: next(made), router=First(), prices=FreePrices())
    sinks = [Recorder(), Recorder()]
    for request, sink in zip(requests, sinks, strict=True):
        engine.submit(request, sink)
    while engine.step():
        pass
    assert [sink.ids for sink in sinks] == [plain_text(request, VOCAB, CONTEXT) for request in requests]
    assert "propose" not in drafters[0].said and "propose" in drafters[1].said
    assert drafters[0].told == sinks[0].ids
