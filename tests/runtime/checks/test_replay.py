"""Replays: rounds as they are served, bounds that bound, and what is said of it all."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tandem.command import run_command
from tandem.errors import UsageError
from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.checks.cli import cli
from tandem.runtime.checks.policies import fates_of, true_chances
from tandem.runtime.checks.record import Kept, read_prompts, record, recorder
from tandem.runtime.checks.recording import Recording, Text
from tandem.runtime.checks.replay import Replay, replay, require_names
from tandem.runtime.checks.replay_cli import POLICIES
from tandem.runtime.checks.replay_report import ReplayReport
from tandem.runtime.engine import Engine
from tandem.runtime.request import Request
from tandem.runtime.router.blend import Blend
from tandem.runtime.router.staircut import StairCut
from tandem.tree import DraftTree
from tests.fake_blocks import BlockExecutor
from tests.fake_drafting import DraftingExecutor
from tests.fakes import Recorder, ScriptedExecutor, geometry, plain_text
from tests.runtime.router.replay import cpu_table, flat_table

PROMPT = (3, 1, 4, 1, 5)
ANSWER = [(7 * i + i // 5) % 60 for i in range(120)]


class Positional:
    """Drafts that depend on nothing but the place in the text: some right, some not, with branches."""

    def __init__(self) -> None:
        self._length = 0

    def begin(self, prompt: Sequence[int]) -> None:
        self._length = len(prompt)

    def sync(self, rows: Sequence[int]) -> None: ...

    def observe(self, tokens: Sequence[int]) -> None:
        self._length += len(tokens)

    def propose(self, max_nodes: int) -> list[DraftTree]:
        place = self._length - len(PROMPT)
        generator = random.Random(place)
        if not generator.randrange(5):
            return []
        right = min(generator.randrange(12), len(ANSWER) - place)
        line = [*ANSWER[place : place + right], *[61] * generator.randrange(3)]
        tree = DraftTree.chain(ANSWER[place - 1], line, [0.9**d for d in range(1, len(line) + 1)], "local")
        side = DraftTree.chain(ANSWER[place - 1], [62], [0.1], "local")
        return [tree.merged(side), tree][: 1 + generator.randrange(2)]


def engine_of(router: object, executor: ScriptedExecutor | None = None) -> Engine:
    prices = PriceModel(cpu_table(), live=False)
    return Engine(executor or scripted(), drafters=Positional, prices=prices, router=router, max_lanes=1)  # type: ignore[arg-type]


def scripted() -> ScriptedExecutor:
    return ScriptedExecutor([*PROMPT, *ANSWER], capacities=geometry(vocab_size=64, context_length=256))


def recorded() -> Recording:
    kept = Kept()
    text = record(engine_of(kept), kept, Request(PROMPT, len(ANSWER)), "text 0", "text")
    return Recording([text], cpu_table())


def test_a_recording_holds_what_is_drafted_at_every_position():
    (text,) = recorded().texts
    assert text.tokens == ANSWER and text.num_prompt == len(PROMPT) and not text.drafts[0]
    drafter = Positional()
    drafter.begin(PROMPT)
    for position in range(1, len(ANSWER) - 20):
        drafter.observe([ANSWER[position - 1]])
        assert text.drafts[position] == [tree for tree in drafter.propose(31) if tree.num_drafted]
    assert sum(map(bool, text.drafts)) > 60


@pytest.mark.parametrize(("kind", "name"), [(DraftingExecutor, "mtp"), (BlockExecutor, "block")])
def test_a_recording_holds_what_a_model_drafts_at_every_position_even_if_it_never_pays(kind, name):
    wrong = {"accuracy": 0.0} if kind is DraftingExecutor else {"manner": "wrong"}
    executor = kind(capacities=geometry(vocab_size=64, context_length=256), **wrong)
    text = record(*recorder(executor), Request(PROMPT, 120), "text 0", "text")
    assert text.tokens == plain_text(Request(PROMPT, 120), 64, 256) and executor.astray == 0
    for position in range(1, 119):  # the last token is never drafted
        assert any(name in tree.sources for tree in text.drafts[position]) and text.draft_ms[position] > 0
    assert max(max(tree.depths()) for drafts in text.drafts for tree in drafts if name in tree.sources) == 4


def test_a_replayed_policy_plays_the_rounds_that_it_plays_when_it_serves():
    executor, sink = scripted(), Recorder()
    engine = engine_of(StairCut(PriceModel(cpu_table(), live=False), learn_cost=False), executor)
    engine.submit(Request(PROMPT, len(ANSWER)), sink)
    while engine.step():
        pass
    served = [rows for kind, rows in executor.passes[1:] if kind is not Kind.COMMIT]
    found = recorded()
    tally = Replay(found, StairCut(PriceModel(cpu_table()), learn_cost=False)).play(found.texts[0])
    assert sink.ids == ANSWER and tally.tokens == len(ANSWER) - 1
    assert (tally.rounds, tally.rows) == (len(served), sum(served)) and max(served) > 4


def text_of(tokens: list[int], drafts: dict[int, list[DraftTree]], draft_ms: float = 0.0) -> Recording:
    at = range(len(tokens))
    each = [draft_ms if i in drafts else 0.0 for i in at]
    return Recording([Text("t", "t", 4, tokens, [drafts.get(i, []) for i in at], each)], flat_table(10.0))


def test_what_a_policy_takes_is_its_tokens_rows_and_prices():
    """Round 1: a line of three of which two are right; round 2: nothing drafted. Then the text is over."""
    found = text_of([1, 2, 3, 4, 5], {1: [DraftTree.chain(1, [2, 3, 9], [0.9, 0.8, 0.7], "local")]})
    (tally,) = replay(found, ["staircut"])["staircut"].values()
    assert (tally.rounds, tally.tokens, tally.rows, tally.ms) == (2, 4, 5, 20.0)
    assert sum(tally.predicted) == pytest.approx(2.4) and sum(tally.accepted) == 2 and tally.accepted[8:] == [1, 1]
    assert tally.promise == pytest.approx(3.4 / 3)
    (plain,) = replay(found, ["plain"])["plain"].values()
    assert (plain.rounds, plain.tokens, plain.rows, plain.ms) == (4, 4, 4, 40.0)


@pytest.mark.parametrize(
    ("branch", "recurrent", "ms"), [(False, False, 10.0), (False, True, 12.0), (True, False, 12.0)]
)
def test_a_path_that_has_to_be_moved_costs_a_commit(branch, recurrent, ms):
    """2 ms for the anchor and two accepted nodes; a line without a state lies in place."""
    tree = DraftTree.chain(1, [2, 3], [0.9, 0.8], "local")
    if branch:
        tree = tree.merged(DraftTree.chain(1, [9], [0.4], "local"))
    found = text_of([1, 2, 3, 4], {1: [tree]})
    found.prices["1024"]["commit"] = {"1": 0.5, "2": 0.5, "3": 2.0, "4": 9.0}
    found.recurrent = recurrent
    (tally,) = replay(found, ["fixed:8"])["fixed:8"].values()
    assert (tally.rounds, tally.ms) == (1, ms)


def test_a_round_that_the_text_ends_in_is_not_held_against_predictions():
    found = text_of([1, 2, 3], {1: [DraftTree.chain(1, [2, 3, 4, 5], [0.9] * 4, "local")]})
    (tally,) = replay(found, ["staircut"])["staircut"].values()
    assert tally.tokens == 2 and tally.judged == 0 and tally.promise == 1.0


def test_a_model_costs_what_it_took_where_it_was_asked():
    """A copy alone brings four tokens where the model promises three: it is not asked and not paid for."""
    copy = DraftTree.chain(1, [2, 3, 4], [0.99, 0.98, 0.97], "local")
    model = DraftTree.chain(1, [2], [0.9], "mtp")
    for drafts, ms in (([copy, model], 10.0), ([model], 15.0)):
        (tally,) = replay(text_of([1, 2, 3, 4, 5], {1: drafts}, 5.0), ["staircut"])["staircut"].values()
        rounds_after = tally.rounds - 1
        assert tally.ms == ms + 10.0 * rounds_after


def test_true_chances_are_those_of_the_texts():
    drafts = {i: [DraftTree.chain(1, [1, 2], [0.65, 0.15], "local")] for i in range(1, 9)}
    chances = true_chances(text_of([1, 1, 1, 2, 1, 2, 1, 1, 9], drafts).texts)
    # From positions 1 to 8 a 1 follows at 1, 2, 4, 6 and 7; behind it a 2 at 2 and 4.
    assert sorted(chances.values()) == pytest.approx([2 / 8, 5 / 8])


def test_fates_are_of_whole_paths():
    tree = DraftTree([0, 1, 2, 3, 2], [-1, 0, 1, 2, 0], [1, 0.9, 0.8, 0.7, 0.1], ["root", *["local"] * 4])
    assert fates_of(Blend([tree], {}), [1, 2, 9]) == [True, True, True, False, False]
    assert fates_of(Blend([tree], {}), [2]) == [True, False, False, False, True]
    assert fates_of(Blend([tree], {}), []) == [True, False, False, False, False]


def test_the_convex_rule_stops_where_a_stair_begins():
    """The second row costs as much as eight: one node of 0.5 does not pay for it, seven do."""
    stairs = {"1": 10.0, "2": 16.0, "8": 16.0, "9": 40.0, "32": 40.0}
    table = {"1024": dict.fromkeys(("extend", "verify-chain", "verify-tree"), stairs)}
    line = DraftTree.chain(1, [9] * 10, [0.5 * 0.99**d for d in range(10)], "local")
    found = text_of([1, 2, 3], {1: [line]})
    found.prices = table
    rows = {name: next(iter(replay(found, [name])[name].values())).rows for name in ("staircut", "early-stop", "plain")}
    assert rows == {"staircut": 8 + 1, "early-stop": 2, "plain": 2}


def test_who_knows_the_text_is_no_slower_than_who_does_not():
    found = recorded()
    tallies = {name: next(iter(by.values())) for name, by in replay(found, POLICIES).items()}
    best = max(tallies, key=lambda name: tallies[name].rate)
    assert best == "prophet" and tallies["plain"].rate == pytest.approx(50.0)
    assert {tally.tokens for tally in tallies.values()} == {len(ANSWER) - 1}
    report = ReplayReport(replay(found, POLICIES))
    lines = "\n".join(report.lines())
    assert "predicted over committed" in lines and "best of these" in lines
    facts = report.facts()["text"]
    assert facts["oracle"]["to_oracle"] == 1.0 and facts["prophet"]["to_bound"] == 1.0
    assert json.loads(json.dumps(facts)) == facts


def test_who_knows_the_text_spends_no_row_on_its_last_token():
    """The target says it itself."""
    found = text_of([1, 2, 3], {1: [DraftTree.chain(1, [2, 3], [0.9, 0.9], "local")]})
    (tally,) = replay(found, ["prophet"])["prophet"].values()
    assert (tally.rounds, tally.rows, tally.tokens) == (1, 2, 2)


def test_names_of_policies():
    require_names(POLICIES)
    with pytest.raises(UsageError, match="'guess'"):
        require_names(["plain", "guess"])


@pytest.mark.parametrize(
    "line",
    [
        '{"workload": "a"}',
        '{"prompt": "x"}',
        "[]",
        "{",
        '{"workload": "a", "prompt": ""}',
        '{"workload": "a", "text": "x"}',
        '{"workload": "a", "prompt": "x", "message": "y"}',
        '{"workload": "a", "prompt": 3}',
    ],
)
def test_prompts_that_are_none_are_refused_by_their_line(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"workload": "a", "message": "x"}\n' + line + "\n")
    with pytest.raises(UsageError, match="line 2"):
        read_prompts(path)
    path.write_text("")
    with pytest.raises(UsageError, match="no prompt"):
        read_prompts(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_prompts(tmp_path)


def test_the_commands(bf16: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: object) -> int:
        return run_command(cli, "tandem-check", [str(argument) for argument in arguments])

    texts = tmp_path / "texts.npz"
    assert run("record", bf16, "-o", texts, "--tokens", 24, "--threads", 1) == 0
    assert str(texts) in capsys.readouterr().out
    assert run("replay", texts, "--json", "--policy", "plain", "--policy", "staircut", "--policy", "fixed:8") == 0
    facts = json.loads(capsys.readouterr().out)[str(texts)]
    assert facts["about"]["temperature"] == 0.0 and set(facts["workloads"]["all"]) == {"plain", "staircut", "fixed:8"}
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"workload": "one", "prompt": "one two one two one"}\n')
    warm = ("--tokens", 16, "--temperature", 0.7, "--threads", 1)
    assert run("record", bf16, "-o", texts, "--prompts", prompts, *warm) == 0
    capsys.readouterr()
    assert run("replay", texts, texts) == 0
    assert "early-stop" in capsys.readouterr().out
    assert run("replay", texts, "--policy", "none") == 2
    assert run("replay", bf16) == 2 and run("replay") == 2
    assert run("record", bf16) == 2 and run("record", bf16, "-o", tmp_path / "none" / "texts.npz") == 2
    assert run("record", bf16, "-o", texts, "--tokens", 256) == 2
