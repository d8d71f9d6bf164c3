"""The plain step of lanes that decode: one row each, in a pass of their own or in front of prompts.

Knows nothing of how passes run, of drafts, or of where tokens go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime.acceptance import pick
from tandem.runtime.draws import Draws
from tandem.runtime.executor.base import Executor, Outcome, Rows
from tandem.runtime.lane import Lane
from tandem.runtime.meter import ROUNDS, Meter, Plain


class Steps:
    """Steps over one executor, whose passes `run` runs and whose device draws by `draws`, if it can. The anchors of the
    lanes are the first rows of a pass and its first outputs, in order.
    """

    def __init__(
        self, executor: Executor, run: Callable[[Kind, Rows], Outcome], meter: Meter, draws: Draws | None
    ) -> None:
        self._executor, self._run, self._meter, self._draws = executor, run, meter, draws
        self._most_drawn = max_joint_rows(executor)

    def run(self, rows: Rows, lanes: Sequence[Lane]) -> Outcome:
        """A pass that begins with the anchors of `lanes`, of which the device draws the tokens where it can."""
        num_outputs = len(rows.output_row)
        if lanes and self._draws is not None and num_outputs <= self._most_drawn:
            rows.wishes = partial(self._draws.wishes, lanes, others=num_outputs - len(lanes))
        return self._run(Kind.EXTEND, rows)

    def commit(self, lanes: Sequence[Lane], outcome: Outcome, why: Plain | None = None) -> list[list[int]]:
        """What each of `lanes` commits of the pass, whose reason to be plain is counted if it is known by now. Most
        rounds are this: it touches little.
        """
        self._meter.rounds.add(ROUNDS[Kind.EXTEND])
        if why is not None:
            self._meter.plain_rounds.add(why)
        committed = []
        for output, lane in enumerate(lanes):
            tokens = [pick(lane, self._executor, outcome, output)]
            lane.commit(tokens, 1)
            lane.inform((output,), tokens)
            committed.append(tokens)
        return committed


def max_joint_rows(executor: Executor) -> int:
    """Rows that all lanes of a round share."""
    return min(MAX_TREE_ROWS, executor.geometry.max_rows, executor.geometry.max_outputs)
