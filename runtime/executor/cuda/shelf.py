"""Executable graphs by entry: which one a pass takes, which are made before serving, which beside it.

A missing one is made when it is asked for, in milliseconds. Knows nothing of programs' insides or of passes' rows.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence

from tandem.artifacts.io import Geometry
from tandem.artifacts.program import Program
from tandem.errors import BundleMismatch
from tandem.keys import DRAFTER_KINDS, LAUNCHED, Kind
from tandem.runtime.executor.cuda.image import EntryProgram

log = logging.getLogger("tandem.runtime")

ANY = 1 << 62
"""Stands for a context class or a row bucket of 0: no number is above it."""


def choose(places: Sequence[tuple[int, int]], rows: int, length: int) -> int | None:
    """Which of `places` (context class, rows; 0 is any) runs `rows` rows over `length` tokens; None for too many rows.

    Of those that hold both the smallest rows, then the smallest class; where no class is long enough, the longest, as
    in `keys.context_class`: rows behind the end of the context are drafts whose results are dropped.
    """
    wide = [(held or ANY, context or ANY, i) for i, (context, held) in enumerate(places) if (held or ANY) >= rows]
    if not wide:
        return None
    longest = max(context for _, context, _ in wide)
    return min((held, context, i) for held, context, i in wide if context >= min(length, longest))[2]


def require_all(entries: Sequence[EntryProgram], geometry: Geometry) -> None:
    """BundleMismatch, which names the kind, unless every pass that a server may ask for finds one of `entries`."""
    joint = min(geometry.verify_rows, geometry.max_outputs)
    most = dict.fromkeys(geometry.kinds, joint)
    most |= {kind: geometry.max_rows for kind in geometry.kinds if kind in (Kind.EXTEND, *DRAFTER_KINDS)}
    if geometry.drafter and (block := geometry.drafter.block):
        most[Kind.DRAFT] = geometry.draft_lanes * block.rows
    for kind, rows in most.items():
        # What holds the most rows is there for fewer as well, so the longest of these is the longest of all.
        held = [context or ANY for k, context, most_rows, _ in entries if k is kind and (most_rows or ANY) >= rows]
        if not held:
            raise BundleMismatch(f"no {kind} entry takes {rows} rows; compile the bundle again")
        if kind not in (Kind.COMMIT, *LAUNCHED) and max(held) < geometry.context_length:
            raise BundleMismatch(
                f"no {kind} entry takes {rows} rows at {geometry.context_length} tokens, the longest ends at "
                f"{max(held)}; compile the bundle again"
            )


class Shelf:
    """Graphs of `entries`. `make` builds one from a program, `enter` readies a thread for that.

    Calls of `make` never overlap. Entries of class 0 and of the shortest class are hot: `make_hot` makes those.
    """

    def __init__(
        self, entries: Sequence[EntryProgram], *, make: Callable[[Program], int], enter: Callable[[], None]
    ) -> None:
        self._make, self._enter = make, enter
        self._entries = {kind: [entry for entry in entries if entry[0] is kind] for kind in Kind}
        self._classes = sorted({context for _, context, _, _ in entries if context})
        self._order = sorted(entries, key=lambda entry: (entry[1], entry[2]))
        self._graphs: dict[int, int] = {}
        self._chosen: dict[tuple[Kind, int, int], Program] = {}
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._make_rest, name="graphs", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether every entry has its graph: nothing is made any more."""
        return all(id(program) in self._graphs for *_, program in self._order)

    def make_hot(self) -> None:
        for _, context, _, program in self._order:
            if context <= min(self._classes, default=0):
                self._graph_of(program)

    def start_rest(self) -> None:
        """Makes the others on a thread of its own."""
        self._thread.start()

    def finish(self) -> None:
        """Waits for the others. Raises what kept one of them from being made."""
        self._thread.join()
        if self._failure:
            raise self._failure

    def graph(self, kind: Kind, rows: int, length: int) -> int:
        """The graph for a pass of `rows` rows whose highest position is `length` - 1. BundleMismatch if none is."""
        step = bisect_left(self._classes, length)
        program = self._chosen.get((kind, rows, step))
        if program is None:
            program = self._chosen[kind, rows, step] = self._program(kind, rows, length)
        return self._graphs.get(id(program)) or self._graph_of(program)

    def close(self) -> None:
        """Ends the thread, behind the graph that it is making."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _program(self, kind: Kind, rows: int, length: int) -> Program:
        entries = self._entries[kind]
        which = choose([(context, held) for _, context, held, _ in entries], rows, length)
        if which is None:
            most = max((held for _, _, held, _ in entries), default=0)
            raise BundleMismatch(
                f"no {kind} entry takes {rows} rows, the largest takes {most}; compile the bundle again"
            )
        return entries[which][3]

    def _graph_of(self, program: Program) -> int:
        with self._lock:
            if (graph := self._graphs.get(id(program))) is None:
                graph = self._graphs[id(program)] = self._make(program)
            return graph

    def _make_rest(self) -> None:
        try:
            self._enter()
            for *_, program in self._order:
                if self._stop.is_set():
                    return
                self._graph_of(program)
        except BaseException as error:
            self._failure = error
            log.error("a graph cannot be made: %s; a pass that needs it will fail", error)
