"""Names and limits of the files in a bundle, as `docs/bundle.md` states them.

Knows nothing of what the files hold.
"""

from __future__ import annotations

import re
from typing import Final

FORMAT: Final = 4

MANIFEST = "manifest.json"
SIGNATURE = "model.sig"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
PRICES = "prices.json"
PROOF = "proof.json"
ORACLE = "oracle.json"
REPORTS = "report/"
REPORT = f"{REPORTS}report.md"
STAIRCASE = f"{REPORTS}staircase.svg"
PROGRAMS = "programs/"
KERNELS = "kernels/"

REQUIRED = (WEIGHTS, TOKENIZER, PRICES, PROOF, ORACLE)
"""Files every bundle lists."""

REMEDY: Final = "copy or compile the bundle again"
"""What to do about a bundle that is damaged."""

MAX_MANIFEST_BYTES = 1 << 20
MAX_JSON_BYTES = 16 << 20
MAX_PROGRAM_BYTES = 16 << 20
MAX_CUBIN_BYTES = 16 << 20
MAX_PATH_CHARS = 200
MAX_FILES = 1 << 16

_PART = re.compile(r"[A-Za-z0-9._-]+")


def program_file(name: str) -> str:
    """Path of the program called `name`."""
    return f"{PROGRAMS}{name}.tdp"


def kernel_file(sha256: str) -> str:
    """Path of the native library with this digest (64 hex digits)."""
    return f"{KERNELS}{sha256}.so"


def cubin_file(sha256: str) -> str:
    """Path of the GPU's binary with this digest (64 hex digits)."""
    return f"{KERNELS}{sha256}.cubin"


def is_measured(path: str) -> bool:
    """Whether a second build may write other bytes there: the clock decides them, not the configuration."""
    return path == PRICES or path.startswith(REPORTS)


def path_fault(path: str) -> str | None:
    """Why `path` may not be listed in a bundle, or None: a fault here could lead out of the folder."""
    if not path or len(path) > MAX_PATH_CHARS:
        return f"is empty or over {MAX_PATH_CHARS} characters"
    if path.startswith("/"):
        return "is absolute"
    if path in (MANIFEST, SIGNATURE):
        return "is the manifest or the signature, which list the others"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return f"holds the part {part!r}"
        if not _PART.fullmatch(part):
            return "holds a character outside A-Z a-z 0-9 . _ - /"
    return None
