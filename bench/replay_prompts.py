"""Prints the benchmark's texts for `tandem-check record --prompts`: prose, chat, code, edit and quote, one JSON a line.

Knows nothing of models or bundles.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

from prompts import ASKED, REQUESTS, TEXTS

QUOTED_LINES = 4


def main() -> None:
    for workload, kind, text in texts():
        print(json.dumps({"workload": workload, kind: text}))


def texts() -> Iterator[tuple[str, str, str]]:
    """(workload, "prompt" to be gone on with or "message" to be answered, text)."""
    for text in REQUESTS["prose"]:
        yield "prose", "prompt", text
    for workload in ("chat", "code"):
        for text in REQUESTS[workload]:
            yield workload, "message", text
    for name, wish in REQUESTS["edits"]:
        yield "edit", "message", ASKED.format((TEXTS / name).read_text(), wish)
    for path in sorted(TEXTS.glob("*.txt")):
        whole = path.read_text()
        again = "".join(whole.splitlines(keepends=True)[:QUOTED_LINES]).rstrip()
        yield "quote", "prompt", f"{whole}\n\n{again}"


if __name__ == "__main__":
    main()
