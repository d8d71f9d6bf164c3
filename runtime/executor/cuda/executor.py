"""The CUDA executor: a bundle's programs rebuilt as graphs over one GPU's memory, a pass being one launch.

Knows no model: what a pass does stands in the programs. Over the driver API alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import numpy as np

from tandem.artifacts.io import IoLayout
from tandem.artifacts.program import Program
from tandem.driver import Driver
from tandem.errors import DeviceError, UsageError
from tandem.keys import DRAFTER_KINDS, Kind
from tandem.runtime.executor import roles
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Moves, Outcome, Rows
from tandem.runtime.executor.cuda import graphs, owned
from tandem.runtime.executor.cuda.image import Image, Loaded, check_room, region_bytes
from tandem.runtime.executor.cuda.modules import Modules
from tandem.runtime.executor.cuda.passes import Passes
from tandem.runtime.executor.cuda.shelf import Shelf
from tandem.runtime.executor.cuda.slots import Slots
from tandem.runtime.executor.cuda.weights import Copier, Weights
from tandem.runtime.executor.regions import check_regions, kv_bytes
from tandem.runtime.executor.snapshot import Snapshot, require_slot

__all__ = ["CudaExecutor", "Image"]

POISON = 0xFF
"""Bytes that read as NaN in fp32 and bf16 alike."""


class CudaExecutor:
    """Implements `tandem.runtime.executor.base.Executor` over a GPU's memory.

    `num_pages` sizes the KV pool. `poison` fills scratch, KV, states and factors with NaNs, so that a read of anything
    never written shows. Raises BundleMismatch for too little memory or another GPU's kernels, BundleCorrupt for
    programs that do not go with their kernels, DeviceError for what the driver refuses: before any kernel runs, leaving
    nothing behind. Weights that cannot be read are told by the first pass, or by `finish`.
    """

    def __init__(self, image: Image, *, num_pages: int, poison: bool = False, driver: Driver | None = None) -> None:
        self.geometry, self.num_pages, self._bundle = image.geometry, num_pages, image.bundle
        self.num_slots = image.geometry.max_lanes if image.geometry.recurrent_layers else 0
        self.entries = [(kind, context, rows) for kind, context, rows, _ in image.programs]
        self._driver, self._stack = driver or Driver(), ExitStack()
        self._copier, self._sizes = Copier(image.copier), region_bytes(image, num_pages)
        layout = IoLayout(image.geometry)
        for program in image.distinct:
            check_regions(program, layout, self._sizes["weights"])
            graphs.require(program)
        for kind, context, rows, program in image.programs:
            roles.check(kind, program, layout, f"{kind} entry of class {context}, {rows} rows")
        try:
            self._open(image, POISON if poison else 0)
        except BaseException:
            with suppress(DeviceError):  # of a GPU that is gone; why it went matters more
                self._stack.close()
            raise

    def _open(self, image: Image, byte: int) -> None:
        """Everything on the device, all but weights and io filled with `byte`. Weights arrive while graphs are made."""
        driver, stack, layout = self._driver, self._stack, IoLayout(self.geometry)
        device = driver.device(image.device)
        self._context, self._thread = owned.context(stack, driver, device), threading.get_ident()
        check_room(self._sizes, *driver.memory())
        self._bases = {name: owned.memory(stack, driver, nbytes) for name, nbytes in self._sizes.items()}
        place = self._bases["weights"], self._sizes["weights"]
        self._weights = Weights(driver, self._context, self._copier, image.weights, *place)
        stack.callback(self._weights.close)
        self._modules = Modules(driver, image.cubin, image.distinct, driver.capability(device))
        stack.callback(self._modules.close)
        for program in image.distinct:  # all of them: once it serves, graphs are made, but no code is loaded
            self._modules.functions(program)
        self._graphs = stack.enter_context(ExitStack())
        self._passes = Passes(stack, driver, layout, self._bases["io"], self._bases.get("seen", 0))
        self._slots = Slots(stack, driver, self._bases["state"], self.geometry.state_bytes) if self.num_slots else None
        for name in self._sizes.keys() - {"weights"}:
            driver.fill(self._bases[name], 0 if name == "io" else byte, self._sizes[name], self._passes.stream)
        self._side, self._num_graphs, self._graphs_ms = owned.stream(stack, driver), 0, 0.0
        self._shelf = Shelf(image.programs, make=self._make, enter=lambda: driver.set_current(self._context))
        stack.callback(self._shelf.close)
        self._shelf.make_hot()
        self._shelf.start_rest()
        self._is_open, self._is_filled = True, False

    @property
    def ready(self) -> bool:
        """Whether every graph is made: from then on serving loads, builds and allocates nothing on the device."""
        return self._shelf.ready

    def finish(self) -> None:
        """Waits until `ready`, and for the weights. Raises what stands in the way."""
        self._enter()
        self._shelf.finish()

    @property
    def loaded(self) -> Loaded:
        return Loaded(
            region_bytes=dict(self._sizes),
            weights_ms=self._weights.ms,
            modules_ms=self._modules.ms,
            graphs_ms=self._graphs_ms,
            module_loads=self._modules.loads,
            graph_builds=self._num_graphs,
        )

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        self._enter()
        graph = self._shelf.graph(kind, len(rows.token), max(rows.position) + 1)
        sample = self._shelf.graph(Kind.SAMPLE, len(rows.output_row), 0) if rows.wishes is not None else None
        return self._passes.run(graph, rows, sample)

    def commit(self, moves: Moves) -> float:
        self._enter()
        return self._passes.commit(self._shelf.graph(Kind.COMMIT, len(moves.lane), 0), moves)

    def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        if self.geometry.drafter is None or kind not in DRAFTER_KINDS:
            raise UsageError(f"this bundle has no {kind}: it holds no drafter that is a model; draft with lookup")
        self._enter()
        length, outputs = max(rows.position) + 1, len(rows.output_row)
        more = list[int]()
        for depth in range(1, rows.chain):
            more += self._shelf.graph(Kind.NEXT, outputs, 0), self._shelf.graph(kind, outputs, length + depth)
        return self._passes.draft(self._shelf.graph(kind, len(rows.token), length), rows, more)

    def logits(self, output: int) -> np.ndarray:
        self._enter()
        return self._passes.logits(output)

    def kv(self, block_table: Sequence[int], length: int) -> bytes:
        self._enter()
        g = self.geometry
        held = block_table[: -(-length // g.page_tokens)]
        pages = np.empty((len(held), g.page_bytes), np.uint8)
        for row, page in zip(pages, held, strict=True):
            source = self._bases["kv"] + int(page) * g.page_bytes
            self._driver.to_host(row.ctypes.data, source, g.page_bytes, self._passes.stream)
        self._driver.synchronize(self._passes.stream)
        return kv_bytes(pages, g, length)

    def save(self, slot: int, position: int) -> Snapshot:
        require_slot(slot, self.num_slots)
        self._enter()
        assert self._slots is not None
        return Snapshot(self._bundle, position, self._slots.read(slot))

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        require_slot(slot, self.num_slots)
        snapshot.require(self._bundle, self.geometry.state_bytes)
        self._enter()
        assert self._slots is not None
        self._slots.write(slot, snapshot.state)

    def close(self) -> None:
        """Gives everything back; calls after the first do nothing."""
        if self._is_open:
            self._is_open = False
            try:
                self._make_current()
            finally:
                self._stack.close()

    def _enter(self) -> None:
        """Waits for the weights, which arrive beside whatever else a start takes, before anything uses the device."""
        self._make_current()
        if not self._is_filled:
            self._weights.join()
            self._driver.synchronize(self._passes.stream)
            self._is_filled = True

    def _make_current(self) -> None:
        """The context is current per thread, and the thread that loads need not be the one that serves."""
        if threading.get_ident() != self._thread:
            self._driver.set_current(self._context)
            self._thread = threading.get_ident()

    def _make(self, program: Program) -> int:
        """A graph that is on the device: its first launch is no slower than the next."""
        functions = self._modules.functions(program)
        began = time.perf_counter()
        made = graphs.build(self._graphs, self._driver, program, functions, self._bases, self._side)
        self._graphs_ms += (time.perf_counter() - began) * 1e3
        self._num_graphs += 1
        return made
