"""What every figure is handed: the roster, the prompts, how long to measure, and the turns of a measurement.

Knows nothing of single figures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from prompts import Prompts
from sides.process import Side, SideError
from sides.roster import Peer, Roster

PROFILES = ("bf16", "int8", "int4")
PROBE = 0
"""A token that every vocabulary has: a peer that cannot go on from it is left out."""


@dataclass
class Context:
    """`tokens` are decoded per run and `repeats` turns are counted; `versions` is what the sides say of themselves."""

    roster: Roster
    repeats: int = 5
    tokens: int = 128
    versions: dict[str, str] = field(default_factory=dict)

    @cached_property
    def prompts(self) -> Prompts:
        return Prompts(next(iter(self.roster.bundles.values())))

    @property
    def profiles(self) -> list[str]:
        """Profiles that there is a bundle of."""
        return [profile for profile in PROFILES if profile in self.roster.bundles]

    @contextmanager
    def sides(self, profile: str, peers: list[Peer]) -> Iterator[tuple[Side, dict[Peer, Side], list[str]]]:
        """Our side, the peers that could be started, and why the others could not; all are closed at the end."""
        with ExitStack() as stack:
            ours = stack.enter_context(self.roster.ours(profile))
            theirs, absent = dict[Peer, Side](), list[str]()
            for peer in peers:
                try:
                    side = stack.enter_context(self.roster.peer(peer))
                    side.run([PROBE], 2)
                    side.runs.clear()
                    theirs[peer] = side
                except SideError as error:
                    absent.append(str(error))
            self.versions |= {side.name: side.versions for side in (ours, *theirs.values())}
            yield ours, theirs, absent

    def turns(self, name: str, play: Callable[[], None], forget: Callable[[], None]) -> None:
        """Call `play` once to warm caches and clocks, `forget` that, and call it `repeats` times more."""
        for turn in range(self.repeats + 1):
            print(f"\r{name}: turn {turn} of {self.repeats} ", end="", file=sys.stderr, flush=True)
            play()
            if turn == 0:
                forget()
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
