"""docs/bug-cases.md names tests that exist, for each case once."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (BUG-\d\d) \| [^|]+ \| ((?:`[^`]+` ?)+)\|$", re.MULTILINE)
CASES = {15, 17, 19, 20, 22, 23, 25, 27, 28, 30, 31, 33, 35, 37, 39, 40, 43, 45, 47, 50, 51, 52, 53, 55, 57, 59}
"""Those of exact text, sampling, ends, parsing and operations (sections B to F) that are held."""


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def test_every_test_that_is_named_exists() -> None:
    text = (ROOT / "docs" / "bug-cases.md").read_text()
    rows = ROW.findall(text)
    assert [name for name, _ in rows] == sorted(f"BUG-{number}" for number in CASES)
    assert len(rows) == text.count("\n| BUG-"), "a row that is not read holds nothing"
    named = [name.split("::") for _, names in rows for name in re.findall(r"`([^`]+)`", names)]
    assert [(path, name) for path, name in named if name not in names_in(ROOT / path)] == []
