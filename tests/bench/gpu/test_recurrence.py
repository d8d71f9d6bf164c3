"""The exact recurrence beside closed forms: shares by hand, makers that are not there, programs without the rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.gpu import delta_peer
from bench.gpu.context import Context, Missing, Opened
from bench.gpu.figures import recurrence
from bench.gpu.shapes import HYBRID27B, SMOLLM2
from figure import Figure
from tandem.driver import Driver
from tandem.keys import Kind
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tests.fake_driver import FakeCuda
from tests.runtime.executor.cuda import sample

ROWS, TREE = 64, 4


class Passes:
    """Passes that take as long as they are told."""

    geometry = SimpleNamespace(max_rows=ROWS)

    def fill(self, length: int) -> None: ...

    def step(self, context: int) -> float:
        return 1.0

    def verify(self, kind: Kind, rows: int, context: int) -> float:
        return 1.0

    def extend(self, count: int, start: int) -> float:
        assert (count, start % count) == (ROWS, 0)
        return 3.0


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """A hybrid on a fake GPU, whose every graph takes a millisecond and whose rule is the kernel `second`."""
    executor = CudaExecutor(sample.image(tmp_path), num_pages=4, driver=Driver(FakeCuda()))
    executor.finish()
    monkeypatch.setattr(recurrence, "RULES", ("second",))
    monkeypatch.setattr(recurrence, "LONG_PROMPT", 4 * ROWS)
    monkeypatch.setattr(recurrence, "MAX_TREE_ROWS", TREE)
    made = Context({}, repeats=2)
    held = Opened(HYBRID27B, None, executor, Passes())  # type: ignore[arg-type]
    monkeypatch.setattr(made, "open", lambda name: held)
    yield made
    executor.close()


def closed_forms(monkeypatch: pytest.MonkeyPatch, *found: tuple[str, float | str]) -> list[Any]:
    asked: list[Any] = []

    def closed_us(heads: delta_peer.Heads, rows: int, parents: Sequence[int] = ()) -> Iterator[tuple[str, float | str]]:
        asked.append((heads, rows, len(parents)))
        yield from found

    monkeypatch.setattr(delta_peer, "closed_us", closed_us)
    return asked


def test_a_verify_costs_what_the_rule_takes_beyond_the_fastest_closed_form(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = closed_forms(monkeypatch, ("own", 5.0), ("fla", 10.0))
    figure = recurrence.recurrence(context)
    by_name = {line.name: line for line in figure.lines}
    # 48 layers of 5 us are 0.24 ms; the rule takes 1 ms, and so does a step.
    for what in ("chain", "tree"):
        cost = by_name[f"{what}: beyond the closed form, of a step"]
        assert cost.spread.median == pytest.approx(76) and cost.missed
    assert asked == [(delta_peer.Heads(48, 16, 48, 128, 128), TREE, parents) for parents in (0, TREE)]
    assert by_name["tree: closed form, fla"].spread.median == pytest.approx(0.48)


def test_a_prompt_is_its_passes_with_another_rule(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_forms(monkeypatch, ("own", 10.0), ("fla", "fla is not there: ImportError: no module"))
    figure = recurrence.long_prompt(context)
    by_name = {line.name: line for line in figure.lines}
    # Four passes of 3 ms, of each 1 ms is the rule; closed forms take 0.48 ms a pass.
    assert by_name["the prompt"].spread.median == pytest.approx(12)
    assert by_name["with the closed form"].spread.median == pytest.approx(12 - 4 + 4 * 0.48)
    assert by_name["exact over closed form"].spread.median == pytest.approx(12 / 9.92)
    assert figure.absent == ["fla is not there: ImportError: no module"]


def test_without_any_closed_form_our_times_are_there(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_forms(monkeypatch, ("own", "own is not there"), ("fla", "fla is not there"))
    assert [line.goal for line in recurrence.recurrence(context).lines] == [None] * 3
    assert [line.name for line in recurrence.long_prompt(context).lines] == [
        "the prompt",
        "of it the rule, all layers",
    ]


def test_programs_without_the_rule_are_refused(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_forms(monkeypatch)
    monkeypatch.setattr(recurrence, "RULES", ("delta_rule",))
    with pytest.raises(Missing, match="extend launches neither of delta_rule"):
        recurrence.long_prompt(context)


def test_models_without_recurrent_layers_have_no_closed_form() -> None:
    with pytest.raises(Missing, match="no recurrent layers"):
        recurrence.closed(Figure("x", "x"), "chain", SMOLLM2, 32)


def test_paths_are_the_bits_of_ancestors() -> None:
    assert delta_peer.paths([-1, 0, 0, 2]).tolist() == [0b1, 0b11, 0b101, 0b1101]
    assert delta_peer.paths(range(-1, 31)).tolist()[-1] == -1  # all 32 bits
