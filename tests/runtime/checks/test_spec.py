"""The spec check: it covers what it says, holds what is right, and sees each kind of fault."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tandem.command import run_command
from tandem.keys import Kind
from tandem.runtime import loading
from tandem.runtime.chat import ChatTemplate
from tandem.runtime.checks.cli import cli
from tandem.runtime.checks.design import DRAFTERS, SCRIPTED, SHAPES, Case, all_widths, design, lengths
from tandem.runtime.checks.forced import FixedWidth, schedule
from tandem.runtime.checks.prompts import last, prompts
from tandem.runtime.checks.spec import Options, Spec
from tandem.runtime.checks.spec_report import SpecReport
from tandem.runtime.drafters.scripted import Guess
from tandem.runtime.executor.base import Executor, Rows
from tandem.tree import DraftTree
from tests.fake_blocks import BlockExecutor
from tests.fake_drafting import DraftingExecutor
from tests.fake_recurrent import RecurrentExecutor
from tests.fake_taps import Tapped
from tests.fakes import ScriptedExecutor, geometry
from tests.runtime.checks.faults import Faulty, several
from tests.service import TEMPLATE, byte_tokenizer

CAPACITIES = geometry(max_lanes=3)
PROMPTS = {"noise": [7, 3, 9, 3, 1, 22, 14, 0, 5, 9, 9], "loop": [4, 8, 15, 16, 4, 8, 15, 16]}
LEVELS: dict[str, tuple] = {
    "drafter": DRAFTERS,
    "shape": SHAPES,
    "prompt": ("a", "b", "c"),
    "length": (1, 63, 64, 65),
    "lanes": (1, 2, 3, 4),
    "threads": (1, 2),
    "chunk": (5, 128),
    "sampled": (False, True),
}


def check(
    wrong: Callable[[Executor, int | None], Executor] = lambda executor, threads: executor, **options: Any
) -> SpecReport:
    """A quick check of the scripted executor; `wrong` may wrap it, told the threads."""

    def open_executor(threads: int | None, num_pages: int) -> Executor:
        return wrong(ScriptedExecutor(capacities=CAPACITIES, num_pages=num_pages), threads)

    return Spec(CAPACITIES, open_executor, PROMPTS, Options(12, (1, 2), quick=True)).run(**options)


@pytest.mark.parametrize("quick", [False, True])
def test_every_width_and_every_pair_of_values_is_met(quick: bool) -> None:
    widths = all_widths(quick=quick)
    filling = {"drafter": SCRIPTED, "lanes": (1,), "length": (1, 64)}
    cases = design(LEVELS, widths, filling)
    met = {
        pair
        for case in cases
        for pair in itertools.combinations(((n, v) for n, v in asdict(case).items() if n != "width"), 2)
    }
    for one, other in itertools.combinations([name for name in asdict(cases[0]) if name != "width"], 2):
        for value, second in itertools.product(LEVELS[one], LEVELS[other]):
            assert ((one, value), (other, second)) in met
    for width, shape in itertools.product(widths, SHAPES):
        assert any(
            (c.width, c.shape) == (width, shape) and all(getattr(c, name) in filling[name] for name in filling)
            for c in cases
        )
    assert cases == design(LEVELS, widths, filling), "a case's number names it for good"
    assert len(cases) < 150


@pytest.mark.parametrize(("kind", "name"), [(DraftingExecutor, "mtp"), (BlockExecutor, "block")])
def test_a_bundles_own_drafter_is_held_to_it_too(kind: type[Tapped], name: str) -> None:
    opened = list[Tapped]()

    def open_executor(threads: int | None, num_pages: int) -> Executor:
        opened.append(kind(capacities=CAPACITIES, num_pages=num_pages))
        return opened[-1]

    spec = Spec(kind(capacities=CAPACITIES).geometry, open_executor, PROMPTS, Options(12, quick=True))
    own = [number for number, case in enumerate(spec.cases) if case.drafter == name]
    assert own and {case.drafter for case in spec.cases} == {*DRAFTERS, name}
    assert all(spec.run(only=number).held for number in own)
    assert all(executor.astray == 0 and executor.draft_passes for executor in opened)


def test_prompt_lengths_stand_at_the_borders_and_never_over_the_most() -> None:
    found = lengths(geometry(page_tokens=64, max_rows=128), 1000, quick=False)
    assert {1, 63, 64, 65, 127, 128, 129} < set(found)
    assert max(lengths(geometry(page_tokens=64, max_rows=128), 100, quick=False)) == 100


def test_prompts_end_as_their_text_does() -> None:
    assert last([1, 2, 3], 2) == (2, 3)
    assert last([1, 2, 3], 7) == (3, 1, 2, 3, 1, 2, 3)


def test_prompts_fit_the_vocabulary() -> None:
    real = prompts(byte_tokenizer(), ChatTemplate(TEMPLATE), 258)
    assert set(real) == {"prose", "code", "repetition", "chat", "noise", "looping noise"}
    assert bytes(real["code"]).startswith(b"def mean(")
    assert set(prompts(byte_tokenizer(), ChatTemplate(None), 258)) == set(real) - {"chat"}
    for small in (prompts(byte_tokenizer(), ChatTemplate(None), 23), prompts(None, ChatTemplate(None), 23)):
        assert set(small) == {"noise", "looping noise"} and max(map(max, small.values())) < 23


@pytest.mark.parametrize(("name", "shape"), list(itertools.product(SCRIPTED, SHAPES)))
def test_scripts_fill_the_width(name: str, shape: str) -> None:
    for nodes in range(1, 32):
        for guess in schedule(name, shape, nodes):
            assert guess.right + guess.wrong + guess.branches == nodes
            assert (name == "wrong") <= (guess.right == 0) and (name == "right") <= (guess.wrong == 0)
    assert schedule("half", "chain", 1) == [Guess(1, 0, 0), Guess(0, 1, 0)]


def test_a_chain_is_what_stands_first_in_a_tree() -> None:
    tree = DraftTree([9, 1, 2, 3, 4], [-1, 0, 1, 1, 0], [1, 0.9, 0.8, 0.1, 0.05], ["root", *["x"] * 4])
    (chain,) = FixedWidth(8, "chain").choose([[tree]], [5], 32, [0])
    assert (chain.tokens, chain.parents) == ([9, 1, 2], [-1, 0, 1])
    (root,) = FixedWidth(8, "chain").choose([[]], [5], 32, [0])
    assert root.num_drafted == 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("nodes", [1, 2, 3, 31])
def test_mixed_drafts_follow_each_other_in_every_order(nodes: int, shape: str) -> None:
    script = schedule("mixed", shape, nodes)
    sorts = set(script)
    assert {Guess(), Guess(0, min(nodes, 3)), Guess(min(nodes, 3))} <= sorts and len(script) == 16
    assert set(itertools.product(sorts, sorts)) == set(itertools.pairwise([*script, script[0]]))
    assert any(guess.branches for guess in script) == (shape == "tree" and nodes > 1)


def test_a_fixed_width_is_shared_by_the_lanes() -> None:
    line = DraftTree.chain(1, [2] * 31, [0.5] * 31, "x")
    bush = DraftTree([1, 2, 3], [-1, 0, 0], [1.0, 0.5, 0.4], ["root", "x", "x"])
    picks = FixedWidth(8, "chain").choose([[bush, line], [line], []], [1, 1, 1], 32, [0, 1, 2])
    assert [len(tree) for tree in picks] == [3, 3, 1] and all(tree.is_chain for tree in picks)
    assert FixedWidth(2, "tree").choose([[bush]], [1], 32, [0])[0].num_drafted == 1


def test_a_sound_executor_is_held() -> None:
    report = check()
    assert report.held and report.first is None and report.proof is not None and report.proof.cases > 500
    assert {key for key, tally in report.tallies.items() if tally.runs} >= set(itertools.product(SCRIPTED, SHAPES))
    right, wrong = report.tallies["right", "chain"], report.tallies["wrong", "chain"]
    assert right.tokens_a_round > 2 > 1.01 > wrong.tokens_a_round and wrong.compared_bits >= wrong.tokens
    assert set(all_widths(quick=True)) - {1} <= {rows for kind, rows in report.passes if kind is Kind.VERIFY_CHAIN}
    assert max(rows for kind, rows in report.passes if kind is Kind.VERIFY_TREE) == 32


@pytest.mark.parametrize("fault", ["argmax", "logits", "commit"])
def test_each_fault_is_seen(fault: str) -> None:
    report = check(lambda executor, threads: Faulty(executor, fault))
    assert not report.held and report.first is not None
    tallies = report.tallies.values()
    assert sum(t.differing_ids + t.differing_bits for t in tallies)
    assert sum(t.differing_ids + t.differing_bits for (name, _), t in report.tallies.items() if name == "none") == 0
    if fault == "logits":
        assert sum(t.differing_ids for t in tallies) == 0 and report.first.what == "logits"
    if fault == "commit":
        assert report.first.case.shape == "tree" and report.first.what == "state"


def test_a_state_is_held_as_kv_is() -> None:
    def open_executor(threads: int | None, num_pages: int) -> Executor:
        return RecurrentExecutor(capacities=CAPACITIES, num_pages=num_pages)

    report = Spec(CAPACITIES, open_executor, PROMPTS, Options(12, (1, 2), quick=True)).run()
    assert report.held and report.proof is not None and report.proof.cases > 700
    assert {key for key, tally in report.tallies.items() if key[0] == "mixed" and tally.rounds > 5} == {
        ("mixed", "chain"),
        ("mixed", "tree"),
    }


@pytest.mark.parametrize("fault", ["commit", "path"])
def test_a_state_that_is_not_moved_on_is_seen(fault: str) -> None:
    def open_executor(threads: int | None, num_pages: int) -> Executor:
        return Faulty(RecurrentExecutor(capacities=CAPACITIES, num_pages=num_pages), fault)

    report = Spec(CAPACITIES, open_executor, PROMPTS, Options(12, (1, 2), quick=True)).run()
    assert not report.held and report.first is not None and report.first.what == "state"
    assert {shape for (_, shape), tally in report.tallies.items() if tally.differing_bits} == set(SHAPES)


def test_a_fault_of_one_thread_count_is_seen_and_its_case_repeats_it() -> None:
    def wrong(executor: Executor, threads: int | None) -> Executor:
        return Faulty(executor, "argmax") if threads == 2 else executor

    first = check(wrong).first
    assert first is not None and first.case.threads == 2 and first.wanted_id != first.found_id and first.gap > 0
    again = check(wrong, only=first.number)
    assert again.first == first and again.proof is None
    assert f"case {first.number} (" in again.lines()[-2] and again.lines()[-1].startswith("NOT HELD")


def test_a_fault_beside_neighbours_is_seen() -> None:
    def joint(kind: Kind, rows: Rows) -> bool:
        return several(kind, rows) and len(set(rows.lane)) == 3

    first = check(lambda executor, threads: Faulty(executor, "logits", joint)).first
    assert first is not None and first.case.lanes == 3


def test_a_device_without_threads_is_checked_program_by_program() -> None:
    kinds = (Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE)
    entries = [(kind, bound, rows) for kind in kinds for bound in (48, 96) for rows in (1, 4, 16, 32)]
    entries += [(Kind.EXTEND, 0, 40), (Kind.COMMIT, 0, 32)]
    made: list[ScriptedExecutor] = []

    def open_executor(threads: int | None, num_pages: int) -> Executor:
        assert threads is None
        made.append(ScriptedExecutor(capacities=CAPACITIES, num_pages=num_pages, entries=entries))
        return made[-1]

    report = Spec(CAPACITIES, open_executor, PROMPTS, Options(12, quick=True)).run()
    assert report.held and len(made) == 1 and made[0].ran == set(entries)
    assert report.facts()["threads"] == [] and not any("threads" in line for line in report.lines())


def test_chunks_with_programs_of_their_own_are_borders_too() -> None:
    found = lengths(geometry(page_tokens=64, max_rows=256), 1000, quick=False, chunks=(64, 128, 256))
    assert {63, 64, 65, 127, 128, 129, 255, 256, 257} < set(found)


def test_a_case_says_what_it_is() -> None:
    case = Case("half", "tree", 9, "code", 65, 2, 1, 16, sampled=True)
    assert str(case) == (
        "drafter half, tree of 9 rows, 65 tokens of 'code' in chunks of 16, 2 lanes, 1 threads, sampled"
    )
    assert str(replace(case, threads=None)).endswith("in chunks of 16, 2 lanes, sampled")


def run(*arguments: object) -> int:
    return run_command(cli, "tandem-check", [str(argument) for argument in arguments])


def test_the_command_holds_a_bundle(fp32: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("spec", fp32, "--quick", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["held"] and facts["first_difference"] is None and facts["proof"]["cases"] > 1000
    assert facts["lanes"] == [1, 2, 3, 4] and 32 in facts["widths"]["verify-chain"]
    assert all(row["differing_ids"] == row["differing_bits"] == 0 for row in facts["rows"])


def test_the_command_sees_a_fault(
    bf16: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = loading.open_executor
    monkeypatch.setattr(loading, "open_executor", lambda *a, **k: Faulty(sound(*a, **k), "logits"))
    assert run("spec", bf16, "--quick", "--tokens", 4, "--threads", 1) == 1
    out = capsys.readouterr().out
    assert "NOT HELD" in out and "top-two gap" in out and f"reproduce: tandem-check spec {bf16} --tokens 4" in out
    again = out.splitlines()[-1].split()[2:]
    assert run(*again) == 1
    assert run("spec", bf16, "--quick", "--case", 999) == 2
    assert "--case is 999; the last one is" in capsys.readouterr().err


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str], fp32: Path) -> None:
    assert run("spec") == 2 and run("spec", tmp_path, "--threads", 0) == 2
    assert run("spec", tmp_path / "none") == 1
    assert run("spec", fp32, "--tokens", 256) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: --tokens 256 leaves no room")
