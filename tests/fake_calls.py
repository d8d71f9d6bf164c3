"""Bookkeeping of `tests.fake_driver`: each function a real C callback, every call counted, every handle accounted for.

Knows nothing of what the calls do.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from ctypes import c_int, c_uint64
from typing import Any

from tandem.libcuda import SIGNATURES

INVALID_CONTEXT, UNKNOWN = 201, 999
ANYWHERE = ("cuInit", "cuDriver", "cuDevice", "cuGetError", "cuCtx")
"""How calls begin that need no context."""
MAKES = ("cuMemAlloc_v2", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncLoad", "cuGraphCreate", "cuGraphAddNode_v2")
"""What a server that is ready does no more, with `cuGraphInstantiateWithFlags`."""
ENDS = ("Destroy", "Destroy_v2", "Free", "Free_v2", "FreeHost", "Unload", "Release_v2")
"""How calls end that take effect though they report an earlier failure."""


class Calls:
    """Functions by their symbols, but for those `missing`; the call number `fail_at`, from 0, answers `code`.

    `live` holds what was made and not ended, by kind and handle.
    """

    def __init__(self, *, fail_at: int | None, code: int, missing: Sequence[str]) -> None:
        self.fail_at, self.code = fail_at, code
        self.calls: list[str] = []
        self.faults: list[str] = []
        self.sealed = False
        """From here on anything of MAKES is a fault."""
        self.live: dict[str, dict[int, Any]] = {
            kind: {} for kind in ("memory", "pinned", "stream", "event", "module", "graph", "executable", "context")
        }
        self._current: dict[int, int] = {}
        self.handles, self._lock = itertools.count(0x1000, 16), threading.RLock()
        for name, types in SIGNATURES.items():
            if name not in missing:
                setattr(self, name, ctypes.CFUNCTYPE(c_int, *types)(self._answering(name)))

    @property
    def counts(self) -> Counter[str]:
        """How often each function was called."""
        return Counter(self.calls)

    def enter(self, context: int) -> None:
        """Makes `context` current on the calling thread."""
        self._current[threading.get_ident()] = context

    def left(self) -> dict[str, int]:
        """How much of each kind is still there."""
        return {kind: len(held) for kind, held in self.live.items() if held}

    def _answering(self, name: str) -> Callable[..., int]:
        act = getattr(self, f"_{name.removesuffix('_v2')}")

        def answer(*arguments: Any) -> int:
            with self._lock:
                try:
                    return self._answer(name, act, arguments)
                except Exception as error:  # ctypes would print it and go on
                    self.faults.append(f"{name}: {error!r}")
                    return UNKNOWN

        return answer

    def _answer(self, name: str, act: Callable[..., int | None], arguments: tuple[Any, ...]) -> int:
        if name.startswith("cuGetError"):
            return act(*arguments) or 0
        self.calls.append(name)
        failing = len(self.calls) - 1 == self.fail_at
        if failing and not name.endswith(ENDS):
            return self.code
        if not name.startswith(ANYWHERE) and self._current.get(threading.get_ident()) not in self.live["context"]:
            self.faults.append(f"{name} on a thread without a context")
            return INVALID_CONTEXT
        if self.sealed and name in (*MAKES, "cuGraphInstantiateWithFlags"):
            self.faults.append(f"{name} after ready")
        answered = act(*arguments) or 0
        return self.code if failing else answered

    def _make(self, kind: str, out: int, made: Any, handle: int | None = None) -> None:
        handle = next(self.handles) if handle is None else handle
        self.live[kind][handle] = made
        c_uint64.from_address(out).value = handle

    def _use(self, kind: str, handle: int | None) -> Any:
        if handle not in self.live[kind]:
            raise LookupError(f"{kind} {handle} is not there")
        return self.live[kind][handle]

    def _end(self, kind: str, handle: int | None) -> Any:
        self._use(kind, handle)
        return self.live[kind].pop(handle or 0)

    def _within(self, kind: str, address: int, nbytes: int) -> None:
        if not any(memory.holds(address, nbytes) for memory in self.live[kind].values()):
            raise LookupError(f"{nbytes} bytes at {address:#x} are not in {kind}")
