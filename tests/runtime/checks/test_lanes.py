"""The lanes check: its crowd is what it says, sound engines are held, and each way to wrong a neighbour is seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tandem.command import run_command
from tandem.errors import TandemError, UsageError
from tandem.keys import Kind
from tandem.runtime import loading
from tandem.runtime.checks import lanes as lanes_module
from tandem.runtime.checks.cli import cli
from tandem.runtime.checks.crowd import Stage, Visit, chunks, draw_asks, draw_wave, lengths
from tandem.runtime.checks.guest import Guest
from tandem.runtime.checks.lanes import WAVE, Lanes, Options, most_lanes
from tandem.runtime.checks.lanes_report import FLAT_BYTES, LanesReport
from tandem.runtime.engine import Engine
from tandem.runtime.executor.base import Executor, Outcome, Rows
from tandem.runtime.lane import Lane
from tandem.runtime.pages import PageTable
from tandem.runtime.prefill import Prefill
from tandem.runtime.request import FinishReason, LaneStats
from tandem.runtime.round import Rounds
from tandem.runtime.slots import StateSlots
from tests.fake_recurrent import RecurrentExecutor
from tests.fakes import ScriptedExecutor, geometry
from tests.runtime.checks.faults import Faulty

CAPACITIES = geometry(max_lanes=8)
PROMPTS = {"noise": [7, 3, 9, 3, 1, 22, 14, 0, 5, 9, 9], "loop": [4, 8, 15, 16, 4, 8, 15, 16]}
KINDS: tuple[type[ScriptedExecutor], ...] = (ScriptedExecutor, RecurrentExecutor)


def check(
    wrong: Callable[[Executor], Executor] = lambda executor: executor,
    kind: type[ScriptedExecutor] = ScriptedExecutor,
    requests: int = 4 * WAVE,
    lanes: int = 8,
    seed: int = 0,
) -> LanesReport:
    """A check of a fake executor, which `wrong` may wrap."""

    def open_executor(num_pages: int) -> Executor:
        return wrong(kind(capacities=CAPACITIES, num_pages=num_pages))

    return Lanes(CAPACITIES, open_executor, PROMPTS, {}, Options(requests, lanes, seed)).run()


def blamed(report: LanesReport) -> str:
    assert not report.held and report.first is not None
    assert report.lines()[-1].startswith("NOT HELD") and report.lines()[-2] == f"first: {report.first.what}"
    return report.first.what


def test_a_crowd_is_drawn_once_for_all() -> None:
    asks = draw_asks(PROMPTS, CAPACITIES, 3)
    wave = draw_wave(asks, 2, 100, 50, 3)
    assert asks == draw_asks(PROMPTS, CAPACITIES, 3) != draw_asks(PROMPTS, CAPACITIES, 4)
    assert wave == draw_wave(asks, 2, 100, 50, 3) and wave[:20] == draw_wave(asks, 2, 100, 20, 3)
    assert wave != draw_wave(asks, 2, 100, 50, 4) and [visit.number for visit in wave] == list(range(100, 150))
    assert [visit.due for visit in wave] == sorted(visit.due for visit in wave)


def test_a_crowd_has_all_sorts() -> None:
    asks = draw_asks(PROMPTS, CAPACITIES, 0)
    prompts = {ask.prompt for ask in asks}
    assert {len(prompt) for prompt in prompts} == set(lengths(CAPACITIES)) >= {1, 7, 8, 9, 17, 50, 85}
    assert chunks(CAPACITIES) == (5, 16, 40) and max(map(len, prompts)) > 2 * max(chunks(CAPACITIES))
    assert any(one != other and one[:8] == other[:8] for one in prompts for other in prompts if len(one) > 8)
    assert {(ask.sampling.temperature == 0, ask.penalties.neutral) for ask in asks} == set(
        product((True, False), repeat=2)
    )
    visits = [visit for wave in range(8) for visit in draw_wave(asks, wave, 0, WAVE, 0)]
    plans = {(visit.hang_up.stage, visit.hang_up.within) for visit in visits if visit.hang_up}
    assert plans == {(stage, within) for stage in Stage for within in (True, False)}
    assert {visit.speculate for visit in visits} == {True, False} and any(visit.stop_at is not None for visit in visits)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_engine_is_held_and_a_run_repeats_itself(kind: type[ScriptedExecutor]) -> None:
    report = check(kind=kind)
    assert report.held and report.first is None and sum(t.requests for t in report.tallies.values()) == 4 * WAVE
    assert set(report.tallies) == set(chunks(CAPACITIES)) and set(report.hung_up) == set(Stage)
    assert set(range(1, 9)) <= set(report.shared) and report.refused > 0
    for tally in report.tallies.values():
        assert tally.drafted > tally.accepted > 0 and tally.differing_ids == 0 < tally.cancelled < tally.requests
    assert report.waits[Stage.QUEUED] > 0 and report.waits[Stage.DECODING] == 1 and report.mixed > 50
    again = check(kind=kind)
    assert replace(again, memory={}) == replace(report, memory={})
    assert f"held: {4 * WAVE} requests of {report.distinct} kinds, 0 differing ids, 0 faults" == report.lines()[-1]


def test_fewer_lanes_and_a_short_wave() -> None:
    report = check(requests=WAVE + 3, lanes=2, seed=5)
    assert report.held and set(report.shared) == {1, 2} and report.growth is None
    assert "not measured" in "\n".join(report.lines())
    assert most_lanes(geometry(max_lanes=3)) == 3 and most_lanes(geometry(max_lanes=99)) == 8
    with pytest.raises(UsageError, match="--lanes is 9; of this bundle 1 to 8 are checked"):
        check(lanes=9)


class Neighbours(Faulty):
    """In passes of several lanes the last one's first page is read where the first lane's lies."""

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        first, last = rows.lane[0], rows.lane[-1]
        if first != last:
            rows.block_table = rows.block_table.copy()
            rows.block_table[last, 0] = rows.block_table[first, 0]
        return super().run(kind, rows)


def test_a_lane_that_reads_its_neighbours_page_is_seen() -> None:
    report = check(lambda executor: Neighbours(executor, "none"))
    assert " of its answer, alone " in blamed(report) and sum(t.differing_ids for t in report.tallies.values()) > 50


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_requests_of_a_run_repeat_its_first_fault(kind: type[ScriptedExecutor]) -> None:
    def wrong(executor: Executor) -> Executor:
        return Faulty(executor, "argmax", lambda kind, rows: len(set(rows.lane)) >= 7)

    first = check(wrong, kind).first
    assert first is not None and check(wrong, kind, requests=first.last + 1).first == first


def test_a_token_dropped_at_a_neighbours_cancel_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Engine._end

    def dropping(engine: Engine, lane: Lane, reason: FinishReason, error: TandemError | None) -> None:
        end(engine, lane, reason, error)
        beside = [other for other in engine._lanes if other.decoding and other.num_left > 3]
        if reason is FinishReason.CANCELLED and beside:
            beside[0].ids[-1] = beside[0].ids[-2]

    monkeypatch.setattr(Engine, "_end", dropping)
    assert " of its answer, alone " in blamed(check())


def test_a_token_kept_back_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = Lane.deliver

    def short(lane: Lane, tokens: list[int]) -> None:
        deliver(lane, tokens[:-1] if len(tokens) > 3 else tokens)

    monkeypatch.setattr(Lane, "deliver", short)
    assert " of its answer, alone " in blamed(check(requests=WAVE))


def test_a_guest_knows_what_it_was_promised() -> None:
    ask = draw_asks(PROMPTS, CAPACITIES, 0)[0]
    guest = Guest.of(Visit(4, ask, 6, 3, True, 0, None), [9, 5, 9, 7, 1, 7, 2, 2], share=5)
    assert guest.wanted == [9, 5, 9, 7] and guest.request.stop_ids == {7} and guest.request.max_tokens == 6
    guest.tokens([9, 5])
    guest.finished(FinishReason.LENGTH, LaneStats(completion_tokens=3), None)
    assert guest.astray() == [2, 3]
    assert guest.faults() == ["ended as length, not stop", "was given 2 ids and told of 3"]
    guest.hung_up, guest.had, guest.reason = True, 1, FinishReason.CANCELLED
    assert guest.astray() == []
    assert guest.faults() == ["was given 2 ids and told of 3", "had 1 ids when it was cancelled and 2 at its end"]
    guest.had = None  # cancelled as a pass ran: what it committed goes nowhere
    assert guest.faults() == []
    guest.tokens([8])
    assert guest.astray() == [2]


def test_noise_that_depends_on_the_lane_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Lane.__init__

    def seeded(lane: Lane, *arguments: object) -> None:
        begin(lane, *arguments)  # type: ignore[arg-type]
        lane.seed += lane.index

    monkeypatch.setattr(Lane, "__init__", seeded)
    assert "sampled with seed" in blamed(check())


def test_pages_and_slots_that_do_not_come_back_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    release = PageTable.release

    def lost(table: PageTable, lane: int) -> None:
        release(table, lane)
        if lane == 3:
            lost_pages.append(table._free.pop(0))
            monkeypatch.setattr(PageTable, "release", release)

    lost_pages = list[int]()
    monkeypatch.setattr(PageTable, "release", lost)
    assert blamed(check(requests=WAVE)).startswith("1 pages did not come back; wave 0") and len(lost_pages) == 1
    monkeypatch.setattr(PageTable, "release", release)
    take = StateSlots.take
    monkeypatch.setattr(StateSlots, "take", lambda slots, lane: (take(slots, lane), slots._free.append(0)))
    assert "slots did not come back" in blamed(check(kind=RecurrentExecutor, requests=WAVE, lanes=1))


def test_a_queue_out_of_order_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    admit = Engine._admit

    def unfair(engine: Engine) -> None:
        engine._waiting.rotate(1)
        admit(engine)

    monkeypatch.setattr(Engine, "_admit", unfair)
    assert "the queue's order is not kept" in blamed(check(requests=WAVE))


def test_a_lane_that_starves_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Rounds.play

    def selfish(rounds: Rounds, lanes: Sequence[Lane]) -> None:
        play(rounds, lanes[:1])

    monkeypatch.setattr(Rounds, "play", selfish)
    assert "and not at most 1, decoding" in blamed(check(requests=WAVE))


def test_a_lane_that_stands_still_while_prompts_come_in_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Prefill.run
    monkeypatch.setattr(Prefill, "run", lambda prefill, lanes, decoding, alone: run(prefill, lanes, alone=alone))
    report = check(requests=WAVE)
    assert "and not at most 1, decoding" in blamed(report) and report.mixed == 0


def test_a_cancel_that_is_not_heeded_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "cancel", lambda engine, ticket: None)
    assert "did not end within a round of its cancel" in blamed(check(requests=WAVE))


def test_an_engine_that_stands_still_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    step, calls = Engine.step, []

    def stuck(engine: Engine) -> bool:
        calls.append(engine)
        return step(engine) if engine._drafters is None else True

    monkeypatch.setattr(Engine, "step", stuck)
    with pytest.raises(TandemError, match="the engine does not get on: round"):
        check(requests=WAVE)


def test_memory_that_grows_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([100 << 20, 101 << 20, (100 << 20) + FLAT_BYTES + 1])
    monkeypatch.setattr(lanes_module, "own_bytes", lambda: next(sizes))
    report = check(requests=4 * WAVE)
    assert "memory grew by 4,194,305 bytes behind the first 100" in blamed(report)
    assert "memory: 104.9 MB after 100 requests, 109.1 MB after 200, +4.19 MB" in report.lines()


def run(*arguments: object) -> int:
    return run_command(cli, "tandem-check", [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("family", "drafter", "requests"), [("llama", None, 120), ("qwen3_5", "mtp", 80), ("llama", "dflash2", 80)]
)
def test_the_command_holds_a_bundle(
    family: str,
    drafter: str | None,
    requests: int,
    tiny_bundle: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = tiny_bundle(family, "fp32", **({"drafter": drafter} if drafter else {}))
    assert run("lanes", bundle, "--requests", requests, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (
        facts["held"] and facts["first_fault"] is None and facts["lanes"] == 8 and (facts["growth"] or 0) < FLAT_BYTES
    )
    assert sum(row["requests"] for row in facts["rows"]) == requests and set(facts["cancelled"]) == set(Stage)
    assert {str(lanes) for lanes in range(1, 9)} <= set(facts["passes_by_lanes"])
    assert facts["mixed_passes"] > requests / 3 and facts["longest_waits"]["decoding"] == 1


def test_the_command_sees_a_fault(
    fp32: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = loading.open_executor
    monkeypatch.setattr(loading, "open_executor", lambda *a, **k: Neighbours(sound(*a, **k), "none"))
    assert run("lanes", fp32, "--requests", 60, "--lanes", 4, "--seed", 2) == 1
    last = capsys.readouterr().out.splitlines()
    assert last[-3].startswith("first: request ") and last[-2].startswith("NOT HELD: 60 requests of ")
    assert last[-1].startswith(f"reproduce: tandem-check lanes {fp32} --lanes 4 --seed 2 --requests ")
    assert run(*last[-1].split()[2:]) == 1
    assert capsys.readouterr().out.splitlines()[-3] == last[-3]
    assert run("lanes", fp32, "--lanes", 99) == 2 and "--lanes is 99; of this" in capsys.readouterr().err
