"""Proves, records and prices programs that are not a bundle yet: a process of its own, as the serving one will be.

Reads one JSON request on stdin, writes JSON lines on stdout: {"step": name} while it works, {"result": {...}} at the
end. Memory is poisoned, so a read of anything never written shows. Without torch, like every part of the runtime.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from tandem.artifacts.io import Geometry
from tandem.artifacts.program import decode
from tandem.artifacts.weights import MappedWeights
from tandem.device import this_machine
from tandem.keys import Kind
from tandem.runtime.checks import draft_scenario, pricing
from tandem.runtime.checks.lab import KEPT_BYTES, Lab, pages_for
from tandem.runtime.checks.proof_entries import prove, text_tokens
from tandem.runtime.checks.scenario import SCENARIOS, run_scenario
from tandem.runtime.executor.base import Executor
from tandem.runtime.executor.cpu import CpuExecutor, Image
from tandem.runtime.executor.library import Library


class StagedCpu(msgspec.Struct, tag_field="device", tag="cpu", forbid_unknown_fields=True):
    """Paths of what was built for a CPU; `programs` by kind."""

    geometry: Geometry
    weights: str
    library: str
    programs: dict[str, str]
    threads: int

    def open(self, num_pages: int) -> Executor:
        """An executor over `num_pages` poisoned pages, to be closed."""
        image = Image(
            self.geometry,
            MappedWeights(Path(self.weights)).data,
            Library(Path(self.library), self.threads),
            {Kind(kind): decode(Path(path).read_bytes(), path) for kind, path in self.programs.items()},
        )
        return CpuExecutor(image, num_pages=num_pages, poison=True)

    def open_roomy(self, least: int, most: int) -> Executor:
        """The same over `most` pages, fewer where they would take over a quarter of memory, never below `least`."""
        affordable = this_machine().memory // 4 // self.geometry.pool_bytes
        return self.open(max(least, min(most, affordable)))


class EntryFile(msgspec.Struct, forbid_unknown_fields=True):
    """An entry's program; entries that share one name the same path."""

    kind: Kind
    context_class: int
    rows: int
    path: str


class StagedCuda(msgspec.Struct, tag_field="device", tag="cuda", forbid_unknown_fields=True):
    """Paths of what was built for a GPU; `cubins` is the folder that holds <sha256>.cubin, `copier` a library."""

    geometry: Geometry
    weights: str
    cubins: str
    copier: str
    programs: list[EntryFile]
    device_index: int = 0

    def open(self, num_pages: int) -> Executor:
        """As `StagedCpu.open`."""
        return self._open(num_pages, num_pages)

    def open_roomy(self, least: int, most: int) -> Executor:
        """The same over `most` pages, or as many as the GPU has room for, never below `least`."""
        return self._open(least, most)

    def _open(self, least: int, most: int) -> Executor:
        from tandem.runtime.executor.cuda.image import Image as GpuImage
        from tandem.runtime.gpu import open_image

        decoded = {path: decode(Path(path).read_bytes(), path) for path in {entry.path for entry in self.programs}}
        image = GpuImage(
            self.geometry,
            weights=Path(self.weights),
            programs=[(entry.kind, entry.context_class, entry.rows, decoded[entry.path]) for entry in self.programs],
            cubins=lambda sha256: (Path(self.cubins) / f"{sha256}.cubin").read_bytes(),
            copier=Path(self.copier),
            device=self.device_index,
        )
        return open_image(image, pages=(least, most), poison=True)


Staged = StagedCpu | StagedCuda


def say_step(name: str) -> None:
    """Tells the process that started this one what is going on."""
    print(msgspec.json.encode({"step": name}).decode(), flush=True)


def examine(staged: Staged) -> dict[str, Any]:
    """Proof, oracle and prices of `staged`, as they go into the bundle."""
    g = staged.geometry
    least = pages_for(text_tokens(g), g.page_tokens, g.max_lanes)
    executor = staged.open_roomy(least, max(least, g.blocks_per_lane))  # prices want a whole context
    try:
        lab = Lab(executor, g.max_lanes, KEPT_BYTES)
        report = prove(lab, say_step)
        say_step("identity scenario")
        fitting = {name: sizes for name, sizes in SCENARIOS.items() if sizes.tokens <= g.context_length}
        oracle = {name: run_scenario(lab, sizes) for name, sizes in fitting.items()}
        oracle |= {draft_scenario.NAME: draft_scenario.run(executor)} if g.drafter else {}
        prices = {} if report.differing else pricing.measure(executor, say_step)
    finally:
        executor.close()
    proof = {"cases": report.cases, "differing": report.differing, "first": report.first}
    return {"proof": proof, "oracle": oracle, "prices": prices}


def main() -> None:
    staged = msgspec.json.decode(sys.stdin.buffer.read(), type=Staged)
    print(msgspec.json.encode({"result": examine(staged)}).decode(), flush=True)


if __name__ == "__main__":
    main()
