"""What every figure is handed: the bundles, opened once and one at a time, and how often to measure.

Also how a figure that takes too long is ended. Imports no framework.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.gpu.passes import Passes, opened
from bench.gpu.shapes import LARGE, SHAPES, Shape

LONGEST = 32_768 + 128
"""Tokens of the longest context that a figure asks for, with what comes behind it."""


class Missing(Exception):
    """A figure cannot be taken here; the message says what it wants."""


@dataclass
class Opened:
    """A bundle that is on the device."""

    shape: Shape
    bundle: Any
    executor: Any
    passes: Passes


class Context:
    """`bundles` by name of their shape; `layers` where large ones have fewer than the shape."""

    def __init__(self, bundles: dict[str, Path], *, repeats: int, layers: int | None = None) -> None:
        self.bundles, self.repeats = bundles, repeats
        fewer = {name: replace(SHAPES[name], num_hidden_layers=layers) for name in LARGE} if layers else {}
        self.shapes: dict[str, Shape] = SHAPES | fewer
        self.served: dict[str, list[dict[str, Any]]] = {}
        """What processes of `bench.gpu.served` said of each bundle, for figures that share them."""
        self._opened: Opened | None = None

    def bundle(self, name: str) -> Path:
        """Where the bundle of this shape lies. Missing if it was not given."""
        if name not in self.bundles:
            raise Missing(f"it wants --{name} BUNDLE")
        return self.bundles[name]

    def open(self, name: str) -> Opened:
        """The bundle on the device; another one is closed first."""
        if self._opened is None or self._opened.shape.name != name:
            self.close()
            bundle, executor = opened(self.bundle(name), LONGEST)
            self._opened = Opened(self.shapes[name], bundle, executor, Passes(executor))
        return self._opened

    def close(self) -> None:
        """Gives the device's memory back."""
        if self._opened:
            self._opened.executor.close()
        self._opened = None

    def abandon(self) -> None:
        """After a failure: what can still be given back is, and the next figure opens its bundle anew."""
        with suppress(Exception):
            self.close()
        self._opened = None


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """TimeoutError in the block after `seconds`."""

    def end(signum: int, frame: object) -> None:
        raise TimeoutError(f"it took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def child(module: str, *arguments: str | Path) -> dict[str, Any]:
    """The JSON object that a module prints last, run in a process of its own. Missing, with its last line, if none."""
    words = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment())
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = (done.stderr.strip() or done.stdout.strip() or "not a word").splitlines()
        raise Missing(f"{module} exited with {done.returncode}: {said[-1]}")
    return json.loads(lines[-1])


def environment() -> dict[str, str]:
    """This process's, with the import path it has, less what opening a driver here has set.

    Bytecode is kept, as pip keeps an installed package's.
    """
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_MODULE_LOADING"}
    kept |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{tempfile.gettempdir()}/tandem-bytecode"}
    return kept | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
