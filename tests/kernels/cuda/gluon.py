"""Gluon's words over Triton's interpreter, which knows Triton's alone: layouts mean nothing, waits mean everything.

A copy into shared memory leaves NaN there until it is waited for, and a product reads its operands when it is waited
for and no sooner: who reads a tile too early, or overwrites one too early, gets NaN. Groups of warps that do different
things are threads, of which one runs at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Thread, local
from types import ModuleType
from typing import Any

import triton
import triton.language as tl
from triton.experimental.gluon import language as gluon_language
from triton.experimental.gluon.language.nvidia import ampere, hopper
from triton.experimental.gluon.language.nvidia.hopper.mbarrier import MBarrierLayout

NAME = "triton.experimental.gluon"
WARP_GROUP = 128


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


class Barrier:
    """An mbarrier: a phase ends when `count` have arrived. Copies that arrive land when somebody waits for it."""

    def __init__(self) -> None:
        self.count = self.missing = self.phases = 0
        self.landing: list[tuple[list[tuple[Shared, Any]], int]] = []

    def init(self, count: int) -> None:
        self.count = self.missing = tl.constexpr(count).value

    def arrive(self, count: int = 1) -> None:
        self.missing -= count
        assert self.missing >= 0, "more arrive at a barrier than it waits for"
        if not self.missing:
            self.missing, self.phases = self.count, self.phases + 1

    def is_over(self, phase: int) -> bool:
        while self.landing:
            copies, count = self.landing.pop(0)
            for shared, value in copies:
                shared.store(value)
            self.arrive(count)
        return self.phases % 2 != phase


class Turns:
    """Lets one of several threads run at a time, each until it waits for another, or tells the others of something."""

    def __init__(self) -> None:
        self.turn = Condition()
        self.running = self.idle = 0
        self.waits: list[Callable[[], bool]] = []
        self.failed: list[BaseException] = []

    def wait(self, barrier: Barrier, phase: Any) -> None:
        def is_over() -> bool:
            return barrier.is_over(int(phase))

        self.waits.append(is_over)
        self._leave_until(lambda: is_over() or (len(self.waits) == self.running and self._nobody_runs()))
        self.waits.remove(is_over)
        assert is_over(), "a group of warps waits for what never comes"

    def arrive(self, barrier: Barrier) -> None:
        """What this lets others do, they do at once."""
        barrier.arrive()
        self._leave_until(self._nobody_runs)

    def _leave_until(self, ready: Callable[[], bool]) -> None:
        self.idle += 1
        self.turn.notify_all()
        self.turn.wait_for(lambda: self.failed or ready())
        self.idle -= 1

    def _nobody_runs(self) -> bool:
        return self.idle == self.running and not any(is_over() for is_over in self.waits)

    def run(self, parts: Any, *_warps_and_registers: Any) -> None:
        self.running, self.idle, self.failed = len(parts), 0, []

        def play(function: Any, arguments: Any) -> None:
            with self.turn:
                try:
                    function(*arguments)
                except BaseException as error:
                    self.failed.append(error)
                finally:
                    self.running -= 1
                    self.turn.notify_all()

        threads = [Thread(target=play, args=part) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failed:
            raise self.failed[0]


class Copies(local):
    """Copies of one group of warps under way, in groups that land in their order."""

    def __init__(self) -> None:
        self.open: list[tuple[Shared, Any]] = []
        self.groups: list[list[tuple[Shared, Any]]] = []

    def arrive(self, shared: Shared, increment_count: bool) -> None:
        """All copies so far, of each thread."""
        assert not increment_count
        shared.tiles[shared.at].landing.append((self.open, WARP_GROUP))
        self.open = []

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


class Products(local):
    """Products of one group of warps under way, which end in their order."""

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
    for name in ("num_programs", "bfloat16", "float16", "float32", "int64", "max", "min"):
        setattr(module, name, _as_triton(name))
    for name in ("SliceLayout", "BlockedLayout", "NVMMADistributedLayout", "NVMMASharedLayout", "DotOperandLayout"):
        setattr(module, name, getattr(gluon_language, name))
    module.DistributedLinearLayout = gluon_language.DistributedLinearLayout  # type: ignore[attr-defined]
    module.arange = lambda start, end, layout=None: tl.arange(start, end)  # type: ignore[attr-defined]
    module.zeros = lambda shape, dtype, layout=None: tl.zeros(shape, dtype)  # type: ignore[attr-defined]
    module.full = lambda shape, value, dtype, layout=None: tl.full(shape, value, dtype)  # type: ignore[attr-defined]
    module.full_like = lambda x, value: tl.full(x.shape, value, x.dtype)  # type: ignore[attr-defined]
    module.static_range = lambda end: range(tl.constexpr(end).value)  # type: ignore[attr-defined]
    module.convert_layout = lambda x, layout, assert_trivial=False: x  # type: ignore[attr-defined]
    module.barrier = lambda: None  # type: ignore[attr-defined]
    module.allocate_shared_memory = _allocated  # type: ignore[attr-defined]
    return module


def _allocated(dtype: Any, shape: Any, layout: Any) -> Shared:
    if isinstance(layout, MBarrierLayout):
        return Shared([Barrier() for _ in range(tl.constexpr(shape[0]).value)])
    return Shared([None] * (tl.constexpr(shape[0]).value if len(shape) > 2 else 1))


def _barriers(turns: Turns) -> ModuleType:
    module = ModuleType("mbarrier")
    module.MBarrierLayout = MBarrierLayout  # type: ignore[attr-defined]
    module.init = lambda shared, count: shared.tiles[shared.at].init(count)  # type: ignore[attr-defined]
    module.arrive = lambda shared: turns.arrive(shared.tiles[shared.at])  # type: ignore[attr-defined]
    module.wait = lambda shared, phase: turns.wait(shared.tiles[shared.at], phase)  # type: ignore[attr-defined]
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
    copies, products, turns = Copies(), Products(), Turns()
    language.warp_specialize = turns.run  # type: ignore[attr-defined]
    asynchronous = ModuleType("async_copy")
    asynchronous.async_load, asynchronous.commit_group = copies.load, copies.commit  # type: ignore[attr-defined]
    asynchronous.wait_group = copies.wait  # type: ignore[attr-defined]
    asynchronous.mbarrier_arrive = copies.arrive  # type: ignore[attr-defined]
    older, newer = ModuleType(ampere.__name__), ModuleType(hopper.__name__)
    older.async_copy = asynchronous  # type: ignore[attr-defined]
    newer.fence_async_shared = lambda: None  # type: ignore[attr-defined]
    newer.mbarrier = _barriers(turns)  # type: ignore[attr-defined]
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
