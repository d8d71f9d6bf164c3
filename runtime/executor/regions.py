"""What programs ask of memory, and how KV lies in it, whatever the device. A state lies there as it is copied.

Letters: P pages. Knows nothing of launches.
"""

from __future__ import annotations

import numpy as np

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import Program
from tandem.errors import BundleCorrupt


def scratch_bytes(programs: list[Program]) -> int:
    """The most scratch that any of `programs` wants."""
    return max((r.nbytes for program in programs for r in program.regions if r.name == "scratch"), default=0)


def check_regions(program: Program, layout: IoLayout, weight_bytes: int) -> None:
    """Raises BundleCorrupt where a program was made for other memory than there is."""
    g = layout.geometry
    for region in program.regions:
        most = {"weights": weight_bytes, "kv": g.page_bytes, "io": layout.nbytes, "scratch": region.nbytes}
        most |= {"state": g.state_bytes, "factors": g.factor_bytes} if g.recurrent_layers else {}
        most |= {"taps": g.drafter.tap_bytes, "draft_kv": g.drafter.page_bytes} if g.drafter else {}
        most |= {"seen": g.seen_bytes} if g.draws else {}
        held = most.get(region.name, 0)
        if region.name not in most or region.nbytes > held or (region.name == "io" and region.nbytes != held):
            raise BundleCorrupt(
                f"a program wants {region.nbytes} bytes of {region.name}, not {held}; rebuild the bundle"
            )


def kv_bytes(pages: np.ndarray, geometry: Geometry, length: int) -> bytes:
    """The first `length` tokens of `pages` uint8 [P, page_bytes], plane by plane, each in the order of slots."""
    parts, offset = [], 0
    for groups, size in geometry.kv_planes * geometry.num_layers:
        end = offset + groups * geometry.page_tokens * size
        plane = pages[:, offset:end].reshape(len(pages), groups, geometry.page_tokens, size)
        parts.append(plane.transpose(0, 2, 1, 3).reshape(-1, groups * size)[:length].tobytes())
        offset = end
    return b"".join(parts)
