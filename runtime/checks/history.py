"""Puts lanes with a recurrent state back to earlier positions: KV is rewound by looking away, a state is not.

Knows what each lane holds and where its state stands; how tokens get there is the lab's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from tandem.runtime.executor.base import Executor
from tandem.runtime.executor.snapshot import Snapshot


class History:
    """The ids that lanes hold, and up to `kept_bytes` of snapshots of where they were put, those last made or used.

    `slots` are the lanes' slots; `replay` keeps a lane's ids from a position on that its state has reached.
    """

    def __init__(
        self,
        executor: Executor,
        slots: Sequence[int],
        kept_bytes: int,
        replay: Callable[[int, Sequence[int], int], None],
    ) -> None:
        self._executor, self._slots, self._replay = executor, slots, replay
        self._room = kept_bytes // max(1, executor.geometry.state_bytes)
        self._ids: list[list[int]] = [[] for _ in slots]
        self._position = [0] * len(slots)
        self._kept: OrderedDict[tuple[int, int], Snapshot] = OrderedDict()
        self._floor: dict[int, Snapshot] = {}

    def claim(self, lane: int, position: int) -> None:
        """What the lane's slot holds counts as the state of an unknown text of `position` tokens."""
        self._ids[lane], self._position[lane] = [0] * position, position
        self._drop(lane, -1)
        self._floor[lane] = self._executor.save(self._slots[lane], position)

    def wrote(self, lane: int, ids: Sequence[int], start: int) -> None:
        """The lane was moved on by `ids`, which stand from `start` on; what lies behind them is as it was."""
        held, end = self._ids[lane], start + len(ids)
        if held[start:end] != list(ids):
            self._drop(lane, start)
        held[start:end] = ids
        self._position[lane] = end

    def seek(self, lane: int, position: int) -> None:
        """Makes the lane's slot hold the state of its first `position` ids."""
        at = self._position[lane]
        if at == position:
            return
        if position == 0:
            self._position[lane] = 0  # what begins there does not look at the slot
            return
        base = self._base(lane, position)
        if base is not None and not base.position <= at <= position:
            self._executor.restore(self._slots[lane], base)
            at = base.position
        elif base is None and at > position:
            at = 0
        self._position[lane] = at
        if at < position:
            self._replay(lane, self._ids[lane][at:position], at)
            self._keep(lane, position)

    def _keep(self, lane: int, position: int) -> None:
        """A place that was come back to once is come back to again; on the way there is little that is."""
        if self._room:
            self._kept[lane, position] = self._executor.save(self._slots[lane], position)
            while len(self._kept) > self._room:
                self._kept.popitem(last=False)

    def _base(self, lane: int, position: int) -> Snapshot | None:
        """The last snapshot of the lane that is not behind `position`."""
        known = [at for of, at in self._kept if of == lane and at <= position]
        if not known:
            return self._floor.get(lane)
        self._kept.move_to_end((lane, max(known)))
        return self._kept[lane, max(known)]

    def _drop(self, lane: int, behind: int) -> None:
        for key in [key for key in self._kept if key[0] == lane and key[1] > behind]:
            del self._kept[key]
