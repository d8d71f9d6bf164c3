"""Triton kernels run by Triton's interpreter, on CPU tensors: the same source, numpy arithmetic, no GPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any
from unittest.mock import patch

import triton
import triton.experimental.gluon  # looks into tl.standard when a first launch would import it
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction

from tandem.kernels.cuda.launch import Work
from tests.kernels.cuda.gluon import over_triton

PACKAGE = "tandem.kernels.cuda"


@cache
def interpreted(module: str) -> ModuleType:
    """`tandem.kernels.cuda.<module>` imported anew with interpreted functions; the usual import stays as it was.

    Jitted functions choose at their definition whether they are compiled or interpreted.
    """
    return _all_interpreted(f"{PACKAGE}.{module}")


@cache
def _all_interpreted(name: str) -> ModuleType:
    usual = {key: sys.modules.pop(key) for key in list(sys.modules) if key.startswith(f"{PACKAGE}.")}
    before = triton.knobs.runtime.interpret
    triton.knobs.runtime.interpret = True
    try:
        with over_triton():
            return importlib.import_module(name)
    finally:
        triton.knobs.runtime.interpret = before
        for key in [key for key in sys.modules if key.startswith(f"{PACKAGE}.")]:
            del sys.modules[key]
        sys.modules.update(usual)


@cache
def _library() -> dict[str, InterpretedFunction]:
    """Triton's own jitted functions (tl.sum, tl.max, ...), which came with its import and so are compiled ones."""
    standard = vars(tl.standard).items()
    return {name: InterpretedFunction(f.fn) for name, f in standard if isinstance(f, triton.JITFunction)}


@contextmanager
def _library_interpreted() -> Iterator[None]:
    """Triton's own functions are interpreted meanwhile, and its language is as it was again afterwards.

    The interpreter puts names of its own into the language, and leaves those that a function called by a function put
    there: what is compiled later would find them.
    """
    places = (tl, tl.core, tl.math, tl.standard, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base)
    usual = [(place, dict(vars(place))) for place in places]
    for module in (tl, tl.standard):
        for name in _library().keys() & vars(module).keys():
            setattr(module, name, _library()[name])
    try:
        with patch.object(interpreter, "_patch_lang", _patched_once()):
            yield
    finally:
        for place, names in usual:
            for name, value in names.items():
                if vars(place)[name] is not value:
                    setattr(place, name, value)


def _patched_once() -> Callable[[Any], Any]:
    """The interpreter's own patch of the language, which every call of a function by a function would make again.

    The second time it finds nothing to do, and looks at every name for that: a third of a launch's time.
    """
    plain, done = interpreter._patch_lang, set[str]()

    def patched(function: Any) -> Any:
        seen = {value.__name__ for value in function.__globals__.values() if value is tl or value is tl.core}
        if seen <= done:
            return interpreter._LangPatchScope()
        done.update(seen)
        return plain(function)

    return patched


def run(kernel: Any, work: Work, **pointers: Tensor | None) -> None:
    """Runs `kernel` (a TritonKernel of an interpreted module) over `work.grid`; tensors by the signature's names."""
    ordered = [pointers.pop(param.name) for param in kernel.signature]
    assert not pointers, f"{kernel.name} takes no {sorted(pointers)}"
    with _library_interpreted():
        kernel.function[work.grid](*ordered, **dict(work.constants), PDL=False)
