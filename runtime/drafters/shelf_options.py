"""What a user may ask the lookup to search beside the request, and what comes of it for drafters and engine.

Knows nothing of command lines, and imports nothing that takes time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

STORE_MIB = 192


@dataclass(frozen=True, slots=True)
class ShelfOptions:
    """`corpus` are folders that `tandem-compile corpus` wrote. `store` is the folder of a suffix store: at most
    `store_mib` of ids, of prompts and answers (`store_scope` all) or of answers alone, or only read."""

    corpus: tuple[Path, ...] = ()
    store: Path | None = None
    store_mib: int = STORE_MIB
    store_scope: Literal["all", "outputs"] = "all"
    store_readonly: bool = False

    @property
    def flags(self) -> str:
        """What was asked for, for messages; empty if nothing was."""
        asked = {"--corpus": self.corpus, "--suffix-store": self.store}
        return " and ".join(flag for flag, given in asked.items() if given)


@dataclass(frozen=True, slots=True)
class Shelves:
    """`lookup` are options of `LookupDrafter`, `closing` is to be called at the end."""

    lookup: dict[str, Any] = field(default_factory=dict)
    closing: tuple[Callable[[], None], ...] = ()
