"""Each of some things behind each other one, as shortly as can be. Knows nothing of what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def every_order(kinds: Sequence[T]) -> list[T]:
    """n * n of `kinds`, n of them, so that going round and round in it meets each behind each once, itself included."""
    unused = [list(range(len(kinds))) for _ in kinds]
    path, circuit = [0], list[int]()
    while path:  # an Eulerian circuit, after Hierholzer
        if following := unused[path[-1]]:
            path.append(following.pop())
        else:
            circuit.append(path.pop())
    return [kinds[i] for i in circuit[:0:-1]]
