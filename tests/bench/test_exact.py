"""Long comparisons of speculative and plain text: what is guessed and counted, a run that goes on, a lie found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answer import CommandError
from exactness.journal import Journal, lines
from exactness.play import SHORTEST, Play, Result, Settings, compare
from exactness.ways import ROUNDS, WAYS, Way, guesses
from sides.process import BENCH
from tandem.artifacts.reader import open_bundle
from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime import loading
from tandem.runtime.checks.lab import token_ids
from tandem.runtime.executor.base import Executor
from tests.bundles import compiled


def _result(turn: int, **changes: Any) -> Result:
    counts = {"answers": 2, "tokens": 12, "rounds": 5, "drafted": 9, "differing": 0, "grams": 6, "new_grams": 3}
    return Result(turn, WAYS[turn].name, **(counts | changes))


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 31), st.booleans())
def test_guesses_are_as_wide_and_as_wrong_as_told(seed: int, chance: float, most: int, tree: bool) -> None:
    found = list(guesses(Random(seed), chance, most, tree=tree))
    assert len(found) == ROUNDS
    assert {guess.right + guess.wrong + guess.branches for guess in found} <= set(range(most + 1))
    assert all(guess.right == 0 for guess in found) or chance > 0
    assert all(guess.wrong == 0 for guess in found) or chance < 1
    assert all(guess.branches == 0 for guess in found) or tree


def test_the_share_of_right_first_tokens_is_the_chance() -> None:
    drafts = [guess for guess in guesses(Random(5), 0.8, 31, tree=False) if guess.right + guess.wrong]
    right = sum(guess.right > 0 for guess in drafts) / len(drafts)
    assert right == pytest.approx(0.8, abs=0.06)  # three standard deviations of 493 draws


def test_whatever_is_not_the_same_at_its_place_differs() -> None:
    stats = SimpleNamespace(rounds=3, drafted=8)
    found: Any = [SimpleNamespace(ids=ids, stats=stats) for ids in ([1, 2, 3, 4], [5, 9, 7, 7], [8], [8, 6, 4])]
    result = compare(3, Way("some"), [[1, 2, 3, 4], [5, 6, 7, 8], [8, 6, 4], [8]], found)
    assert (result.tokens, result.differing) == (12, 2 + 2 + 2)
    assert (result.rounds, result.drafted) == (12, 32)
    assert result.first == "turn 3 (some, 4 lanes), lane 1: token 1 of the answer"


def test_runs_of_four_tokens_are_new_once() -> None:
    same: Any = [SimpleNamespace(ids=[1, 2, 1, 2, 1, 2, 1], stats=SimpleNamespace(rounds=1, drafted=0))]
    result = compare(0, Way("some"), [[1, 2, 1, 2, 1, 2, 1]], same)
    assert (result.grams, result.new_grams) == (4, 2)


def test_a_short_context_bounds_prompts_and_answers() -> None:
    assert Settings.fitting(4096, 8, 160) == Settings(answer=160, lanes=4, longest=400)
    assert Settings.fitting(256, 2, 160) == Settings(answer=128, lanes=2, longest=96)


def test_a_journal_goes_on_behind_what_it_has(tmp_path: Path) -> None:
    path, about = tmp_path / "journal", {"bundle": "abc"}
    journal = Journal(path, about)
    journal.add(_result(0))
    journal.add(_result(1, differing=2, first="there"))
    with path.open("a") as file:
        file.write('{"turn": 2, "wa')  # the end of a run that was killed
    again = Journal(path, about)
    assert again.results == journal.results
    assert (again.tokens, again.differing) == (24, 2)
    again.add(_result(2))
    assert [json.loads(line).get("turn") for line in path.read_text().splitlines()] == [None, 0, 1, 2]
    with pytest.raises(CommandError, match="of another run"):
        Journal(path, {"bundle": "abd"})


def test_a_report_has_a_row_for_each_way_and_says_what_differs() -> None:
    report = lines([_result(0), _result(1), _result(0, tokens=22)])
    assert report[1].split()[-6:] == ["4", "34", "10", "3.00", "18", "0"]
    assert report[-2] == "46 greedy tokens of 6 answers, 50% of their runs of four tokens new in them"
    assert report[-1] == "held: 0 ids differ from plain decoding"
    report = lines([_result(1, differing=1, first="turn 1, lane 0")])
    assert report[-3:] == ["first difference: turn 1, lane 0", report[-2], "NOT HELD: 1 ids differ from plain decoding"]


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    opened = open_bundle(compiled("qwen3_5", "fp32"), trust_native=True)
    executor = loading.open_executor(opened, threads=1, num_pages=Settings(24, 4, 60).pages(16))
    yield executor
    executor.close()


def _play(executor: Any) -> Play:
    texts = [token_ids(length, executor.geometry.vocab_size, seed=length) for length in (SHORTEST, 90, 200)]
    return Play(executor, Settings(24, 4, 60), texts, frozenset(), PriceModel())


def test_a_hybrid_answers_the_same_in_every_way_and_company(executor: Executor) -> None:
    play = _play(executor)
    results = [play.turn(number) for number in range(0, 4 * len(WAYS), 3)]
    assert {result.answers for result in results} == {1, 2, 3, 4}
    assert len({result.way for result in results}) >= 4
    assert sum(result.differing for result in results) == 0
    assert all(result.tokens == 24 * result.answers for result in results)
    perfect = play.turn(len(WAYS) - 2)
    assert perfect.way == "100% right, chain"
    assert perfect.rounds < perfect.tokens / 4


def test_a_turn_is_played_again_by_its_number(executor: Executor) -> None:
    assert _play(executor).prompts(17) == _play(executor).prompts(17)
    assert _play(executor).prompts(17) != _play(executor).prompts(18)
    assert _play(executor).turn(14) == _play(executor).turn(14)


class Lying:
    """An executor whose verifies of several rows choose another token in their last row."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def run(self, kind: Kind, rows: Any) -> Any:
        outcome = self._executor.run(kind, rows)
        if kind is not Kind.EXTEND:
            outcome.argmax[-1] = (outcome.argmax[-1] + 1) % self._executor.geometry.vocab_size
        return outcome


def test_a_wrong_row_is_found(executor: Executor) -> None:
    result = _play(Lying(executor)).turn(len(WAYS) - 2)
    assert result.differing > 0
    assert "100% right, chain, 1 lanes), lane 0" in result.first


def test_the_command_needs_no_framework_and_goes_on(tmp_path: Path) -> None:
    bundle, journal = compiled("qwen3_5", "fp32"), tmp_path / "journal"
    program = (
        "import runpy, sys\n"
        "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally:\n    assert not {'torch', 'triton', 'transformers'} & set(sys.modules)"
    )
    kept: list[str] = []
    for tokens in (30, 60):
        words = [str(BENCH / "exact.py"), str(bundle), "--answer", "12", "--tokens", str(tokens)]
        run = f"import sys; sys.argv = {[*words, '--journal', str(journal)]!r}\n{program}"
        done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "held: 0 ids differ from plain decoding"
        before, kept = kept, journal.read_text().splitlines()
        assert kept[: len(before)] == before
        assert tokens <= sum(json.loads(line)["tokens"] for line in kept[1:]) < tokens + 12
