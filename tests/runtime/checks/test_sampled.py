"""The sampled check: sound engines are held, and each way to draw wrongly is seen."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.artifacts.io import Geometry
from tandem.command import run_command
from tandem.errors import TandemError
from tandem.runtime import acceptance, sampling
from tandem.runtime.checks import sampled
from tandem.runtime.checks.cli import cli
from tandem.runtime.checks.expected import by_id, by_rank, distribution
from tandem.runtime.checks.sampled import Options, Sampled
from tandem.runtime.checks.sampled_report import SampledReport
from tandem.runtime.executor.base import Executor, Wishes
from tandem.runtime.lane import Lane
from tandem.runtime.penalties import PenalizedText
from tandem.runtime.request import Penalties, Sampling
from tests.fake_recurrent import RecurrentExecutor
from tests.fakes import ScriptedExecutor, geometry
from tests.runtime.checks.faults import Faulty

CAPACITIES = geometry(max_lanes=3, vocab_size=64)
PROMPTS = {"noise": [7, 3, 9, 3, 1, 22, 14, 0, 5, 9, 9], "loop": [4, 8, 15, 16, 4, 8, 15, 16]}


@pytest.fixture
def one_manner(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Leaves one manner of those that a check goes through."""
    return lambda number: monkeypatch.setattr(sampled, "MANNERS", sampled.MANNERS[number : number + 1])


def check(
    wrong: Callable[[Executor], Executor] = lambda executor: executor,
    kind: type[ScriptedExecutor] = ScriptedExecutor,
    options: Options = Options(400, 1000, quick=True),  # noqa: B008
    capacities: Geometry = CAPACITIES,
) -> SampledReport:
    def open_executor(num_pages: int) -> Executor:
        return wrong(kind(capacities=capacities, num_pages=num_pages))

    steps: list[str] = []
    found = Sampled(capacities, open_executor, PROMPTS, options)
    report = found.run(steps.append)
    assert len(steps) == found.num_steps()
    found.close()
    return report


class Draws:
    """Has a device draw: `wrong` changes what it is asked before."""

    def __init__(self, wrong: Callable[[Wishes], None] = lambda wishes: None) -> None:
        self.wrong, self.drawn = wrong, 0

    def __call__(self, executor: Any) -> Executor:
        usual = executor.draws.draw

        def draw(wishes: Wishes, logits: Sequence[np.ndarray]) -> list[int]:
            self.wrong(wishes)
            self.drawn += len(logits)
            return usual(wishes, logits)

        executor.draws.draw = draw
        return executor


def test_a_device_that_draws_is_held_to_the_hosts_texts(one_manner: Callable[[int], None]) -> None:
    one_manner(1)  # with filters and penalties
    sound = Draws()
    assert check(sound, capacities=replace(CAPACITIES, draws=True)).held and sound.drawn > 1000

    def forget(wishes: Wishes) -> None:
        wishes.fresh = []

    report = check(Draws(forget), capacities=replace(CAPACITIES, draws=True))
    assert not report.held and any(texts.differing_ids for texts in report.texts.values())


def test_a_sound_engine_is_held() -> None:
    report = check()
    assert report.held and report.lines()[-1] == "held: 0 differing ids, 0 misfits"
    assert {trial.kind for trial in report.trials} == {
        "tokens served",
        "neighbours served",
        "draws by seed",
        "draws by position",
        "neighbours by seed",
        "neighbours by position",
    }
    assert all(trial.fit.freedom > 3 for trial in report.trials if "served" in trial.kind)
    right, wrong = report.texts["right", "chain"], report.texts["wrong", "tree"]
    assert right.rounds < wrong.rounds / 2 and wrong.tokens == 32 * wrong.answers


def test_a_recurrent_one_too(one_manner: Callable[[int], None]) -> None:
    one_manner(1)
    assert check(kind=RecurrentExecutor).held


def test_a_bit_astray_in_a_verify_is_seen(one_manner: Callable[[int], None]) -> None:
    class Louder(Faulty):
        def logits(self, output: int) -> np.ndarray:
            values = super().logits(output)
            values[3] += 5 * self._wrong
            return values

    one_manner(0)
    report = check(lambda executor: Louder(executor, "none"))
    assert not report.held and report.astray is not None and "temperature 1, drafter" in report.astray
    assert any("first difference: " in line for line in report.lines())


Draw = Callable[[np.ndarray, Sampling, int, int], int]


def hotter(logits: np.ndarray, asked: Sampling, seed: int, position: int) -> int:
    return sampling.draw(logits / np.float32(1.5), asked, seed, position)


def deaf(logits: np.ndarray, asked: Sampling, seed: int, position: int) -> int:
    """The noise of a text is the same at every second position."""
    return sampling.draw(logits, asked, seed, position // 2)


def unfiltered(logits: np.ndarray, asked: Sampling, seed: int, position: int) -> int:
    return sampling.draw(logits, Sampling(asked.temperature), seed, position)


@pytest.mark.parametrize(
    ("wrong", "manner", "kind"),
    [(hotter, 0, "tokens served"), (deaf, 0, "neighbours served"), (unfiltered, 2, "tokens served")],
)
def test_each_way_to_draw_wrongly_is_seen(
    wrong: Draw, manner: int, kind: str, one_manner: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    one_manner(manner)
    monkeypatch.setattr(acceptance, "draw", wrong)
    report = check(options=Options(1000, 200, quick=True))
    assert report.astray is None and kind in {trial.kind for trial in report.misfits}
    assert report.lines()[-1].startswith("NOT HELD: 0 differing ids")


def mixed_up(logits: np.ndarray, asked: Sampling, seed: int, position: int) -> int:
    """Seeds that follow each other share their noise."""
    return sampling.draw(logits, asked, seed // 2, position)


@pytest.mark.parametrize(
    ("wrong", "kinds"),
    [
        (hotter, {"draws by position", "draws by seed"}),
        (unfiltered, {"draws by position", "draws by seed"}),
        (deaf, {"neighbours by position"}),
        (mixed_up, {"neighbours by seed"}),
    ],
)
def test_single_rows_see_it_too(
    wrong: Draw, kinds: set[str], one_manner: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    one_manner(2)
    monkeypatch.setattr(sampled, "draw", wrong)
    assert kinds <= {trial.kind for trial in check(options=Options(32, 4000, quick=True)).misfits}


def test_noise_that_is_not_fresh_is_seen(one_manner: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """BUG-23: requests without a seed share one noise."""
    plain = Lane.__init__

    def shared(lane: Lane, *arguments: Any) -> None:
        plain(lane, *arguments)
        if lane.sampling.seed is None:
            lane.seed = 1

    one_manner(0)
    monkeypatch.setattr(Lane, "__init__", shared)
    report = check(options=Options(200, 50, quick=True))
    assert report.repeated > 2 and not report.held


def test_penalties_of_the_draft_left_out_are_seen(
    one_manner: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """BUG-27 and 28: a verified row is penalised as if the drafted tokens before it were not said."""
    plain = PenalizedText.applied

    def forgetful(text: PenalizedText, logits: np.ndarray, said: Sequence[int] = ()) -> np.ndarray:
        return plain(text, logits)

    one_manner(1)
    monkeypatch.setattr(PenalizedText, "applied", forgetful)
    report = check(options=Options(50, 50, quick=True))
    assert report.astray is not None


def test_a_context_too_short() -> None:
    with pytest.raises(TandemError, match="a context of 32 holds no answer of 32 tokens"):
        Sampled(geometry(context_length=32), lambda pages: ScriptedExecutor(num_pages=pages), PROMPTS, Options())


def test_expected_shares_by_hand() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3])).astype(np.float32)
    np.testing.assert_allclose(distribution(logits, Sampling(1.0), Penalties(), [0], []), [0.1, 0.4, 0.2, 0.3], 1e-6)
    half = distribution(logits, Sampling(0.5, top_p=0.6), Penalties(), [0], [])
    np.testing.assert_allclose(half, [0, 16 / 25, 0, 9 / 25], 1e-6)
    two = distribution(logits, Sampling(1.0, top_k=3, min_p=0.6), Penalties(presence=math.log(2)), [1], [3])
    np.testing.assert_allclose(two, [0, 1, 0, 0], 1e-6)
    loop = distribution(logits, Sampling(1.0), Penalties(no_repeat_ngram_size=2), [3, 1, 3], [])
    np.testing.assert_allclose(loop, [1 / 6, 0, 1 / 3, 1 / 2], 1e-6)


def test_places_lie_side_by_side() -> None:
    shares = np.array([0.25, 0.4, 0.25, 0.1])
    assert [by_rank(shares, token, 0.0) for token in (1, 0, 2, 3)] == pytest.approx([0, 0.4, 0.65, 0.9])
    assert by_rank(shares, 2, 0.5) == pytest.approx(0.775)
    assert [by_id(shares, token, 0.5) for token in range(4)] == pytest.approx([0.125, 0.45, 0.775, 0.95])


def test_the_command(bf16: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*flags: object) -> int:
        return run_command(cli, "tandem-check", ["sampled", str(bf16), *map(str, flags)])

    monkeypatch.setattr(sampled, "MANNERS", sampled.MANNERS[2:3])
    assert run("--quick", "--tokens", 64, "--draws", 300, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["held"] and facts["bundle"] == str(bf16) and facts["first_difference"] is None
    assert {trial["draws"] for trial in facts["trials"]} >= {300}
    monkeypatch.setattr(acceptance, "draw", unfiltered)
    assert run("--quick", "--tokens", 64, "--draws", 50) == 1
    assert "NOT HELD" in capsys.readouterr().out
    assert run("--draws", 0) == 2
