"""Where in a context figures are taken: as deep in its class as a verify of 32 rows still fits.

Knows nothing of bundles.
"""

from __future__ import annotations

from tandem.keys import MAX_TREE_ROWS

SHORT = 1024 - MAX_TREE_ROWS
"""Tokens before a pass "at 1k"."""
LONG = 32_768 - MAX_TREE_ROWS
"""... and "at 32k"."""


def spoken(context: int) -> str:
    """`1k` for SHORT."""
    return f"{(context + MAX_TREE_ROWS) // 1024}k"
