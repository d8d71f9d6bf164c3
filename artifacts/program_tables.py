"""What a program is made of: kernels, regions, launches, their arguments and the edges between them.

Knows nothing of files, devices or models. `tandem.artifacts.program` is how others come to these names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

MAX_ALIGNMENT = 64
"""Where every runtime places regions: at multiples of this."""
REGIONS = ("weights", "kv", "state", "factors", "taps", "draft_kv", "seen", "io", "scratch")
CONSTANT = -1
"""The `region` of a parameter whose value is the argument itself."""
FULL, PROGRAMMATIC = 0, 1
"""Types of an edge, numbered as the CUDA driver does: behind all of the source, or behind its trigger."""

LAUNCH = np.dtype(
    [(name, "<u4") for name in ("kernel", "first_param", "num_params", "wait")]
    + [("grid", "<u4", (3,)), ("block", "<u4", (3,)), ("shared", "<u4")]
)
"""A call. On a CPU `grid`, `block` and `shared` are 0; on a GPU `shared` is in bytes."""
PARAM = np.dtype([("region", "<i4"), ("alignment", "<u4"), ("value", "<u8"), ("extent", "<u8")])
"""An argument: its bits, or an offset into a region of which the launch may touch `extent` bytes from there on."""
EDGE = np.dtype(
    [("source", "<u4"), ("target", "<u4"), ("from_port", "u1"), ("to_port", "u1"), ("type", "u1"), ("pad", "u1", (5,))]
)
"""Launch `target` waits for launch `source`; ports and type as in the driver's `CUgraphEdgeData`."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A symbol of a content-addressed binary (`binary` is its sha256).

    `param_sizes` are the bytes of its arguments in order, on a CPU eight each; `shared` is the most dynamic shared
    memory a launch asks for, in bytes, on a CPU 0.
    """

    binary: str
    symbol: str
    param_sizes: tuple[int, ...]
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """A span of memory, one of REGIONS, of at least `nbytes`.

    For `kv` and `draft_kv` that is one page, for `state` one lane's slot: the runtime chooses how many.
    """

    name: str
    nbytes: int
    alignment: int = MAX_ALIGNMENT


@dataclass(frozen=True, slots=True)
class Program:
    """Launches (dtype LAUNCH) over arguments (PARAM).

    On a CPU they run in order and `wait` 1 asks for all earlier ones to have ended; on a GPU `edges` (EDGE) say what
    waits for what.
    """

    kernels: tuple[Kernel, ...]
    regions: tuple[Region, ...]
    launches: np.ndarray
    params: np.ndarray
    edges: np.ndarray = field(default_factory=lambda: np.zeros(0, EDGE))

    @property
    def on_gpu(self) -> bool:
        """Whether its launches have blocks of threads."""
        return bool(self.launches["block"].any())

    def relocate(self, bases: dict[str, int]) -> np.ndarray:
        """Argument words [params] uint64 for regions at the addresses `bases`, which must be aligned."""
        table = np.zeros(len(self.regions) + 1, np.uint64)
        for i, region in enumerate(self.regions):
            if bases[region.name] % region.alignment:
                raise ValueError(f"region {region.name} at {bases[region.name]:#x} is not {region.alignment}-aligned")
            table[i] = bases[region.name]
        return self.params["value"] + table[self.params["region"]]  # CONSTANT, -1, reads the zero at the end
