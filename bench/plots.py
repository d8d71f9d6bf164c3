"""Plots of what drafts cost and bring, as SVG files, of files that other commands write:

staircase: milliseconds over rows, of bundles (their prices.json);
accepted: how often drafts come true, by position and source, of recordings (tandem-check record);
deciles: drafted nodes that StairCut expected to be accepted and those that were, of tandem-check replay --json;
workloads: tokens a second, of bench/workloads.py --json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

from answer import CommandError
from chart import Chart, Point, Series
from tandem.errors import TandemError

MOST_ROWS = 32
LEAST_TRIALS = 20
"""Positions of which fewer were drafted say nothing."""


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plot", choices=PLOTS)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the SVG file")
    options = parser.parse_args()
    try:
        drawn = PLOTS[options.plot](options.files).svg()
        options.output.write_text(drawn, encoding="utf-8")
    except (CommandError, TandemError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def staircase(paths: Sequence[Path]) -> Chart:
    """Of each bundle, or price table, the lowest context class."""
    from tandem.prices import read_table

    chart = Chart("What a pass costs", "rows", "ms")
    for path in paths:
        classes, _ = read_table(read_json(path / "prices.json" if path.is_dir() else path))
        if not classes:
            raise CommandError(f"{path}: holds no prices; price the bundle first")
        context, table = next(iter(classes.items()))
        name = f"{path.name}, " if len(paths) > 1 else ""
        for kind, by_rows in table.kinds.items():
            points = [Point(rows, ms) for rows, ms in by_rows.items() if rows <= MOST_ROWS]
            chart.series.append(Series(f"{name}{kind}", points))
        chart.title = f"What a pass costs, contexts up to {context:,}"
    return chart


def accepted(paths: Sequence[Path]) -> Chart:
    """Share of positions at which a drafted line was right so far, of those at which it was as long."""
    from tandem.runtime.checks.policies import fates_of
    from tandem.runtime.checks.recording import load_recording
    from tandem.runtime.router.blend import Blend

    counts: dict[str, list[list[int]]] = {}
    for path in paths:
        for text in load_recording(path).texts:
            for position, drafts in enumerate(text.drafts):
                for tree in drafts:
                    blend = Blend([tree], {})
                    fates = fates_of(blend, text.tokens[position:])
                    for depth, node in enumerate(blend.line()[: len(text.tokens) - position]):
                        count = counts.setdefault(blend.source(node), [[0, 0] for _ in range(MOST_ROWS)])[depth]
                        count[0] += fates[node]
                        count[1] += 1
    chart = Chart("Drafted tokens that come true", "position in the draft", "share accepted, all before it as well")
    for source, by_depth in sorted(counts.items()):
        points = [Point(i, hits / of) for i, (hits, of) in enumerate(by_depth, 1) if of >= LEAST_TRIALS]
        if points:
            chart.series.append(Series(source, points))
    return chart


def deciles(paths: Sequence[Path]) -> Chart:
    """Of all workloads of all files together."""
    predicted, came = [0.0] * 10, [0.0] * 10
    for path in paths:
        for name, file in entries(read_json(path), path):
            workloads = dict(entries(need(file, "workloads", path), path))
            for workload, policies in workloads.items():
                if workload == "all" and len(workloads) > 1:
                    continue
                tally = need(policies, "staircut", f"{path}: {name}: {workload}")
                for total, key in ((predicted, "predicted"), (came, "accepted")):
                    total[:] = [a + b for a, b in zip(total, need(tally, key, path), strict=True)]
    names = [f"{tenth / 10:.1f}" for tenth in range(10)]
    chart = Chart("StairCut's promises", "chance given to a node, from", "drafted nodes", names=names)
    for name, values in (("predicted", predicted), ("accepted", came)):
        chart.series.append(Series(name, [Point(i, value) for i, value in enumerate(values)]))
    return chart


def workloads(paths: Sequence[Path]) -> Chart:
    """Medians, with the least and the greatest."""
    figures = [figure for path in paths for figure in listed(read_json(path), path)]
    chart = Chart("Decoding", "", "tokens a second", names=[figure["title"] for figure in figures])
    found: dict[str, list[Point]] = {}
    for place, figure in enumerate(figures):
        for line in figure["lines"]:
            if line["unit"] == "tok/s":
                point = Point(place, line["median"], line["least"], line["greatest"])
                found.setdefault(line["name"], []).append(point)
    chart.series = [Series(name, points) for name, points in found.items()]
    return chart


PLOTS: dict[str, Callable[[Sequence[Path]], Chart]] = {
    "staircase": staircase,
    "accepted": accepted,
    "deciles": deciles,
    "workloads": workloads,
}


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{path}: cannot be read as JSON ({error})") from error


def entries(value: Any, path: Path) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        raise CommandError(f"{path}: not what tandem-check replay --json prints")
    return value.items()


def need(value: Any, key: str, where: object) -> Any:
    if not isinstance(value, dict) or key not in value:
        raise CommandError(f"{where}: holds no {key!r}; replay with --json and the policy staircut")
    return value[key]


def listed(value: Any, path: Path) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(e, dict) and {"title", "lines"} <= e.keys() for e in value):
        raise CommandError(f"{path}: not what bench/workloads.py --json writes")
    return value


if __name__ == "__main__":
    sys.exit(main())
