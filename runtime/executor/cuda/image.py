"""What the CUDA executor takes, how much memory that needs, and what it tells about its loading.

Knows nothing of the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import Program
from tandem.errors import BundleMismatch
from tandem.keys import Kind
from tandem.runtime.executor.regions import scratch_bytes

EntryProgram = tuple[Kind, int, int, Program]
"""Kind, context class and rows (0 is any), and the program. Entries that share a file share the very object."""

CODE_BYTES = 512 << 20
"""Set aside for kernels, graphs and the driver's own use: about twice what a bundle of a hundred graphs took."""
LEAST_BYTES = 64
"""No region is smaller: the driver allocates nothing of no bytes."""


@dataclass(frozen=True, slots=True)
class Image:
    """What the executor takes from an opened bundle.

    `weights` is the safetensors file, whose offsets are the weight region's; `cubins` gives a cubin's bytes for its
    sha256; `copier` is the library that brings the weights over; `device` counts the GPUs that CUDA_VISIBLE_DEVICES
    lets be seen. `bundle` is its content id, by which snapshots know whose they are; "" before it is sealed.
    """

    geometry: Geometry
    weights: Path
    programs: Sequence[EntryProgram]
    cubins: Callable[[str], bytes] | Mapping[str, bytes]
    copier: Path
    device: int = 0
    bundle: str = ""

    @property
    def distinct(self) -> list[Program]:
        """Each program once, in the order of its first entry."""
        return list({id(program): program for *_, program in self.programs}.values())

    def cubin(self, sha256: str) -> bytes:
        return self.cubins(sha256) if callable(self.cubins) else self.cubins[sha256]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Facts of a load: `region_bytes` by region, milliseconds, and what was made so far.

    `weights_ms` ran beside `modules_ms` and `graphs_ms`, which are sums over what was made.
    """

    region_bytes: dict[str, int]
    weights_ms: float
    modules_ms: float
    graphs_ms: float
    module_loads: int
    graph_builds: int


def region_bytes(image: Image, num_pages: int) -> dict[str, int]:
    """How large each region is, with `num_pages` pages of KV, a drafter's too, and, of a model with recurrent layers, a
    slot a lane."""
    g = image.geometry
    sizes = {
        "weights": image.weights.stat().st_size,
        "kv": num_pages * g.page_bytes,
        "io": IoLayout(g).nbytes,
        "scratch": scratch_bytes(image.distinct),
    }
    if g.recurrent_layers:
        sizes |= {"state": g.max_lanes * g.state_bytes, "factors": g.factor_bytes}
    if g.drafter:
        sizes |= {"taps": g.drafter.tap_bytes, "draft_kv": num_pages * g.drafter.page_bytes}
    if g.draws:
        sizes["seen"] = g.seen_bytes
    return {name: nbytes if name == "weights" else max(nbytes, LEAST_BYTES) for name, nbytes in sizes.items()}


def check_room(sizes: dict[str, int], free: int, total: int) -> None:
    """Raises BundleMismatch, with every sum, where `sizes` by region and CODE_BYTES are more than `free`."""
    wanted = sizes | {"kernels and graphs": CODE_BYTES}
    if (needed := sum(wanted.values())) <= free:
        return
    parts = ", ".join(f"{name} {gib(nbytes)}" for name, nbytes in wanted.items())
    raise BundleMismatch(
        f"this GPU has {gib(free)} of {gib(total)} free and {gib(needed)} are needed: {parts}; "
        "ask for a shorter --max-model-len or fewer --max-num-seqs, stop what else runs on this GPU (nvidia-smi), "
        "or take one with more memory"
    )


def gib(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.2f} GiB"
