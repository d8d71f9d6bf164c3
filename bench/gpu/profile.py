"""Where a pass's time goes: each kernel alone in a row, and how much faster the pass is without it.

    python3 -m bench.gpu.profile BUNDLE [--kind extend] [--rows 1] [--at 992]

With programmatic dependence kernels overlap, so neither column adds up to the whole. Imports no framework.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from bench.gpu.device import Device, some
from bench.gpu.passes import Passes, opened
from tandem.keys import Kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--kind", type=Kind, default=Kind.EXTEND)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--at", type=int, default=992, help="tokens before the pass")
    args = parser.parse_args()
    _, executor = opened(args.bundle, args.at + 4096)
    try:
        report(executor, args.kind, args.rows, args.at)
    finally:
        executor.close()


def report(executor: object, kind: Kind, rows: int, at: int) -> None:
    """Prints a line per symbol, the dearest first. Cubins of one symbol that differ in shape are told apart by grid."""
    passes, device = Passes(executor), Device(executor)
    passes.fill(at)
    if kind is Kind.EXTEND:
        passes.extend(rows, at)
    else:
        passes.verify(kind, rows, at)
    program = device.program(kind, at + rows, rows)
    whole = device.graph_ms(kind, at + rows, rows).median
    print(f"{kind.value} of {rows} rows at {at}: {len(program.launches)} launches, {1e3 * whole:.1f} us")
    lines = []
    for which, kernel in enumerate(program.kernels):
        count = int(np.sum(program.launches["kernel"] == which))
        binary = kernel.binary

        def alone(k: object, binary: str = binary) -> bool:
            return k.binary == binary  # type: ignore[attr-defined]

        with device.restored(some(program, alone)) as graph:
            own = 1e3 * device.ms(graph, 3).median
        without = 0.0
        if count < len(program.launches):
            with device.restored(some(program, lambda k, binary=binary: k.binary != binary)) as graph:
                without = 1e3 * (whole - device.ms(graph, 3).median)
        grid = tuple(int(n) for n in program.launches[program.launches["kernel"] == which][0]["grid"])
        lines.append(
            (
                without,
                f"{kernel.symbol:<18} {count:>4} x {own / count:7.2f} us alone, {without / count:7.2f} us "
                f"of the pass each, {without:8.1f} in all, grid {grid}, shared {kernel.shared}",
            )
        )
    for _, line in sorted(lines, reverse=True):
        print("  " + line)


if __name__ == "__main__":
    main()
