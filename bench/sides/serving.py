"""The child's half of the protocol that all sides speak: JSON lines on stdin and stdout, one answer to a request.

The first line out is {"ready": versions}. A request is {"ids", "num_tokens", ...}, its answer {"ids", "prefill_ms",
"decode_ms", ...}: the first token comes out of the prefill, the others out of the decoding.
Standard library only: it is imported in every peer's own environment.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1

Generate = Callable[..., dict[str, Any]]
"""Called with the fields of a request as keywords."""


def answer(ids: list[int], start: float, first: float, end: float, **more: Any) -> dict[str, Any]:
    """An answer from three times of `time.perf_counter`: before the prefill, after the first token, at the end."""
    return {"ids": ids, "prefill_ms": 1e3 * (first - start), "decode_ms": 1e3 * (end - first), **more}


def claim_stdout() -> Any:
    """The real stdout for answers alone; whatever else prints goes to stderr from now on, native code included."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return out


def serve(load: Callable[[], tuple[str, Generate]]) -> None:
    """Load, say so, and answer until stdin closes."""
    # A stopped process would outlive a parent that was killed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    out = claim_stdout()
    versions, generate = load()
    print(json.dumps({"ready": versions}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(generate(**json.loads(line))), file=out, flush=True)
