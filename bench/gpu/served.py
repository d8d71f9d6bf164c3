"""A process as serving has it, and what its load cost: graphs, modules, memory, and what is made once it is ready.

`python3 -m bench.gpu.served BUNDLE` prints one JSON object. Imports no framework, and says so.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.gpu.context import LONGEST
from bench.gpu.figures.contexts import SHORT
from bench.gpu.passes import Passes, answer, opened
from tandem.driver import Driver
from tandem.keys import Kind

MAKING = ("module", "graph", "instantiate", "alloc")
"""Calls of the driver that load, build and allocate."""
FRAMEWORKS = ("torch", "triton", "transformers")


def main() -> int:
    """Returns the exit code."""
    calls = counted()
    began = time.perf_counter()
    bundle, executor = opened(Path(sys.argv[1]), LONGEST)
    executor.finish()
    ready = time.perf_counter()
    loaded, before = executor.loaded, calls.copy()
    serve(bundle, executor)
    free, total = executor._driver.memory()
    facts = {
        "ready_ms": 1e3 * (ready - began),
        "loaded": asdict(loaded),
        "after_ready": {name: calls[name] - before[name] for name in MAKING},
        "frameworks": [name for name in FRAMEWORKS if name in sys.modules],
        "free": free,
        "total": total,
    }
    executor.close()
    print(json.dumps(facts))
    return 0


def counted() -> Counter[str]:
    """How often each of MAKING is called from now on, by any Driver."""
    calls = Counter[str]()

    def counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls[name] += 1
            return method(*arguments)

        return call

    for name in MAKING:
        setattr(Driver, name, counting(name, getattr(Driver, name)))
    return calls


def serve(bundle: Any, executor: Any) -> None:
    """An answer, verifies of every width in chains and trees, and a long prompt."""
    answer(executor, bundle.prices, 100, 40)
    passes = Passes(executor)
    passes.fill(min(2 * SHORT, passes.most - 64))
    for rows in range(1, 33):
        for kind in (Kind.VERIFY_CHAIN, Kind.VERIFY_TREE):
            passes.verify(kind, rows, SHORT)


if __name__ == "__main__":
    sys.exit(main())
