"""Writes one GGUF anew in other types, with llama.cpp's own quantiser. Runs in llama.cpp's environment.

Arguments: GGUF, a folder, types such as Q8_0. A file that is there already stays as it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

import llama_cpp as llama


@llama.llama_log_callback
def quiet(level: int, text: bytes, data: object) -> None:
    """Takes a line for every tensor; a failure shows as the code that a call answers."""


def convert(source: Path, target: Path, kind: str) -> None:
    """Every weight of `source` dequantised and stored as `kind`; weights that have that type already are copied."""
    params = llama.llama_model_quantize_default_params()
    params.ftype = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.allow_requantize = True
    part = target.with_suffix(".partial")
    if code := llama.llama_model_quantize(str(source).encode(), str(part).encode(), params):
        raise SystemExit(f"{target.name}: llama_model_quantize answered {code}")
    part.replace(target)


if __name__ == "__main__":
    given, folder, *kinds = sys.argv[1:]
    llama.llama_log_set(quiet, None)
    for kind in kinds:
        target = Path(folder) / f"{kind}.gguf"
        if not target.exists():
            convert(Path(given), target, kind)
