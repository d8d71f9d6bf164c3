"""What a bundle's MTP layer costs on this GPU: a step, drafts, syncs, and chains made by the host or by the device.

`python3 -m bench.gpu.draft_times BUNDLE` prints least milliseconds of several runs, copies and waits included.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tandem.artifacts.reader import open_bundle
from tandem.keys import Kind
from tandem.runtime.checks.pricing import pass_ms
from tandem.runtime.executor.base import DraftRows, Executor
from tandem.runtime.loading import open_executor
from tandem.runtime.rows import DraftSpan, draft_rows

REPEATS, CONTEXT = 30, 700
ROWS = (1, 8, 32)


def main() -> int:
    """Returns the exit code."""
    bundle = open_bundle(Path(sys.argv[1]))
    drafter = bundle.geometry.drafter
    if drafter is None or drafter.block is not None:
        print(f"error: {sys.argv[1]} has no MTP layer; compile a checkpoint that has one", file=sys.stderr)
        return 2
    executor = open_executor(bundle, num_pages=4 * (CONTEXT // bundle.geometry.page_tokens + 1))
    print(f"{bundle.manifest.name} at {CONTEXT} tokens, least of {REPEATS}, ms")
    for kind in (Kind.EXTEND, Kind.SYNC, Kind.DRAFT):
        times = (least(lambda kind=kind, rows=rows: pass_ms(executor, kind, rows, CONTEXT)) for rows in ROWS)
        listed = ", ".join(f"{rows} rows {ms:.3f}" for rows, ms in zip(ROWS, times, strict=True))
        print(f"  {kind:<8} {listed}")
    for lanes in (1, 4):
        for length in range(1, drafter.chain + 1):
            apart = least(lambda lanes=lanes, length=length: by_host(executor, lanes, length))
            alone = least(
                lambda lanes=lanes, length=length: executor.draft(Kind.DRAFT, rows(executor, lanes, length)).ms
            )
            print(f"  chain of {length}, {lanes} lanes: pass by pass {apart:.3f}, by the device {alone:.3f}")
    executor.close()
    return 0


def least(run: Callable[[], float]) -> float:
    """Of REPEATS runs, after two to warm up."""
    return min([run() for _ in range(REPEATS + 2)][2:])


def rows(executor: Executor, lanes: int, length: int, step: int = 0) -> DraftRows:
    """A row a lane, `step` positions behind CONTEXT."""
    g = executor.geometry
    table = np.arange(lanes * g.blocks_per_lane, dtype=np.int32).reshape(lanes, -1) % executor.num_pages
    made = draft_rows(Kind.DRAFT, [DraftSpan(lane, CONTEXT + step, [7], [lane], lane) for lane in range(lanes)], table)
    made.chain = length
    return made


def by_host(executor: Executor, lanes: int, length: int) -> float:
    """Passes of a chain, each waited for."""
    return sum(executor.draft(Kind.DRAFT, rows(executor, lanes, 1, step)).ms for step in range(length))


if __name__ == "__main__":
    sys.exit(main())
