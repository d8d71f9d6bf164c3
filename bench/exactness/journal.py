"""What turns gave, kept in a file line by line, so that a run that ends early goes on where it was.

Knows nothing of how turns are played.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from answer import CommandError
from exactness.play import Result
from tandem.runtime.checks.tables import table


class Journal:
    """Results so far, in `results`. `about` is what must be the same for a run to go on; a CommandError says it is not.

    Without a `path` nothing is kept. A line cut off by the end of a run is written anew.
    """

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self._path, self.results = path, list[Result]()
        if path is None:
            return
        lines = path.read_text().split("\n")[:-1] if path.is_file() else []
        if lines and json.loads(lines[0]) != about:
            raise CommandError(f"{path} is of another run ({lines[0]}); remove it or name another file")
        self.results = [Result(**json.loads(line)) for line in lines[1:]]
        path.write_text("".join(f"{line}\n" for line in lines or [json.dumps(about)]))

    def add(self, result: Result) -> None:
        self.results.append(result)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(result.record()) + "\n")

    @property
    def tokens(self) -> int:
        return sum(result.tokens for result in self.results)

    @property
    def differing(self) -> int:
        return sum(result.differing for result in self.results)


def lines(results: Sequence[Result]) -> list[str]:
    """A report: a row for each way, then what all of them gave."""
    head = ("drafts", "answers", "tokens", "rounds", "a round", "drafted", "ids differ")
    rows = []
    for way in dict.fromkeys(result.way for result in results):
        mine = [result for result in results if result.way == way]
        counts = {
            name: sum(getattr(result, name) for result in mine)
            for name in ("answers", "tokens", "rounds", "drafted", "differing")
        }
        rate = (counts["tokens"] - counts["answers"]) / max(1, counts["rounds"])  # a first token is the prefill's
        columns = ("answers", "tokens", "rounds")
        rows.append((way, *(counts[name] for name in columns), rate, counts["drafted"], counts["differing"]))
    tokens, answers, differing = (sum(getattr(r, n) for r in results) for n in ("tokens", "answers", "differing"))
    new = sum(result.new_grams for result in results) / max(1, sum(result.grams for result in results))
    found = [*table(head, rows), ""]
    found += [f"first difference: {first}" for first in [r.first for r in results if r.first][:1]]
    found.append(f"{tokens:,} greedy tokens of {answers:,} answers, {new:.0%} of their runs of four tokens new in them")
    found.append(f"{'held' if not differing else 'NOT HELD'}: {differing:,} ids differ from plain decoding")
    return found
