"""Gluon's words over Triton's interpreter, which knows Triton's alone: layouts mean nothing, waits mean everything.

A copy into shared memory leaves NaN there until it is waited for, and a product reads its operands when it is waited
for and no sooner: who reads a tile too early, or overwrites one too early, gets NaN.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import triton
import triton.language as tl
from triton.experimental.gluon import language as gluon_language
from triton.experimental.gluon.language.nvidia import ampere, hopper

NAME = "triton.experimental.gluon"


class Shared:
    """Tiles in shared memory, one for each index, or a view of one of them."""

    def __init__(self, tiles: list[Any], at: int = 0, turned: bool = False) -> None:
        self.tiles, self.at, self.turned = tiles, at, turned

    def index(self, at: Any) -> Shared:
        return Shared(self.tiles, int(at))

    def permute(self, order: Any) -> Shared:
        assert tuple(order) == (1, 0)
        return Shared(self.tiles, self.at, not self.turned)

    def store(self, value: Any) -> None:
        self.tiles[self.at] = value

    def read(self) -> Any:
        value = self.tiles[self.at]
        return tl.trans(value) if self.turned else value


class Copies:
    """Copies under way, in groups that land in their order."""

    def __init__(self) -> None:
        self.open: list[tuple[Shared, Any]] = []
        self.groups: list[list[tuple[Shared, Any]]] = []

    def load(self, shared: Shared, pointer: Any, mask: Any = None) -> None:
        shape = [int(size) for size in pointer.shape]
        value = tl.load(pointer) if mask is None else tl.load(pointer, mask=tl.broadcast_to(mask, shape), other=0.0)
        shared.store(tl.full(shape, float("nan"), value.dtype))
        self.open.append((shared, value))

    def commit(self) -> None:
        self.groups.append(self.open)
        self.open = []

    def wait(self, outstanding: int = 0) -> None:
        while len(self.groups) > outstanding:
            for shared, value in self.groups.pop(0):
                shared.store(value)


class Product:
    """A product under way: `value` is what it gives once it is waited for."""

    def __init__(self, a: Any, b: Shared, acc: Any, use_acc: bool) -> None:
        self.operands, self.use_acc, self.value = (a, b, acc), use_acc, None

    def end(self) -> None:
        a, b, acc = self.operands
        left = a.read() if isinstance(a, Shared) else a
        self.value = tl.dot(left, b.read(), acc if self.use_acc else acc * 0.0, input_precision="ieee")


class Products:
    """Products under way, which end in their order."""

    def __init__(self) -> None:
        self.running: list[Product] = []

    def begin(self, a: Any, b: Shared, acc: Any, *, use_acc: bool = True, is_async: bool = False) -> Product:
        assert is_async, "a product is waited for by name"
        self.running.append(Product(a, b, acc, use_acc))
        return self.running[-1]

    def wait(self, outstanding: int = 0, deps: Any = ()) -> Any:
        while len(self.running) > outstanding:
            self.running.pop(0).end()
        values = [dep.value if isinstance(dep, Product) else dep for dep in deps]
        assert all(value is not None for value in values), "a product that is not done yet is asked for"
        return values[0] if len(values) == 1 else tuple(values)


def _language() -> ModuleType:
    module = ModuleType(f"{NAME}.language")
    for name in ("constexpr", "load", "store", "where", "maximum", "minimum", "exp2", "fma", "program_id"):
        setattr(module, name, _as_triton(name))
    for name in ("num_programs", "bfloat16", "float32", "int64", "max"):
        setattr(module, name, _as_triton(name))
    for name in ("SliceLayout", "BlockedLayout", "NVMMADistributedLayout", "NVMMASharedLayout", "DotOperandLayout"):
        setattr(module, name, getattr(gluon_language, name))
    module.arange = lambda start, end, layout=None: tl.arange(start, end)  # type: ignore[attr-defined]
    module.zeros = lambda shape, dtype, layout=None: tl.zeros(shape, dtype)  # type: ignore[attr-defined]
    module.full = lambda shape, value, dtype, layout=None: tl.full(shape, value, dtype)  # type: ignore[attr-defined]
    module.full_like = lambda x, value: tl.full(x.shape, value, x.dtype)  # type: ignore[attr-defined]
    module.convert_layout = lambda x, layout: x  # type: ignore[attr-defined]
    module.barrier = lambda: None  # type: ignore[attr-defined]
    module.allocate_shared_memory = (  # type: ignore[attr-defined]
        lambda dtype, shape, layout: Shared([None] * (shape[0] if len(shape) > 2 else 1))
    )
    return module


def _as_triton(name: str) -> Any:
    """The same word of Triton's, looked up when it is used: the interpreter puts its own in its place."""
    value = getattr(tl, name)
    if isinstance(value, type | tl.dtype):
        return value
    return lambda *args, **options: getattr(tl, name)(*args, **options)


def _jit(function: Callable[..., Any]) -> Any:
    function.__globals__.setdefault("tl", tl)  # where the interpreter looks for the language
    interpreted = triton.jit(function)
    rewritten = interpreted.rewrite()
    rewritten.__annotations__ = {name: kind.replace("gl.", "tl.") for name, kind in function.__annotations__.items()}
    return interpreted


@contextmanager
def over_triton() -> Iterator[None]:
    """What is imported meanwhile finds these words instead of Gluon's."""
    language, gluon = _language(), ModuleType(NAME)
    gluon.jit, gluon.language = _jit, language  # type: ignore[attr-defined]
    copies, products = Copies(), Products()
    asynchronous = ModuleType("async_copy")
    asynchronous.async_load, asynchronous.commit_group = copies.load, copies.commit  # type: ignore[attr-defined]
    asynchronous.wait_group = copies.wait  # type: ignore[attr-defined]
    older, newer = ModuleType(ampere.__name__), ModuleType(hopper.__name__)
    older.async_copy = asynchronous  # type: ignore[attr-defined]
    newer.fence_async_shared = lambda: None  # type: ignore[attr-defined]
    newer.warpgroup_mma, newer.warpgroup_mma_wait = products.begin, products.wait  # type: ignore[attr-defined]
    words = {NAME: gluon, language.__name__: language, older.__name__: older, newer.__name__: newer}
    usual = {name: sys.modules[name] for name in words}
    parent, attribute = sys.modules["triton.experimental"], sys.modules[NAME]
    sys.modules.update(words)
    parent.gluon = gluon
    try:
        yield
    finally:
        sys.modules.update(usual)
        parent.gluon = attribute
