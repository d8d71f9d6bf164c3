"""Opens programs on a GPU with as many KV pages as it has room for, or says in one line what is missing.

Knows nothing of bundles or options; imported only where something is for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tandem.driver import Driver
from tandem.errors import BundleMismatch, CapacityError, DeviceError
from tandem.runtime.executor.cuda.executor import CudaExecutor, Image
from tandem.runtime.executor.cuda.image import CODE_BYTES, gib, region_bytes

UTILIZATION = 0.9
"""Share of a GPU's memory that one process may take, unless it is told otherwise."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of a GPU: `total`, and `free` of them now; `share` of the total may be taken."""

    total: int
    free: int
    share: float = UTILIZATION

    @property
    def allowed(self) -> int:
        return int(self.total * self.share)


def pages_that_fit(sizes: dict[str, int], room: Room, page_bytes: int, pages: tuple[int, int]) -> int:
    """As many of `pages[1]` as there is room for beside what `sizes` lists by name, never fewer than `pages[0]`.

    BundleMismatch where the GPU could never hold so many, CapacityError where something else has its memory.
    """
    least, most = pages
    held = (min(room.allowed, room.free) - sum(sizes.values())) // page_bytes
    if held >= least:
        return min(held, most)
    parts = sizes | {f"the KV of one context ({least} pages)": least * page_bytes}
    needed = sum(parts.values())
    listed = ", ".join(f"{name} {gib(nbytes)}" for name, nbytes in parts.items())
    if needed > room.allowed:
        raise BundleMismatch(
            f"{gib(needed)} of GPU memory are needed ({listed}) and {gib(room.allowed)} are allowed, "
            f"{room.share:g} of this GPU's {gib(room.total)}; ask for a shorter --max-model-len, a larger "
            "--gpu-memory-utilization, or a larger GPU"
        )
    raise CapacityError(
        f"{gib(needed)} of GPU memory are needed ({listed}) and {gib(room.free)} of {gib(room.total)} are free; "
        "end what else runs on this GPU (nvidia-smi), ask for a shorter --max-model-len, or choose another GPU with "
        "CUDA_VISIBLE_DEVICES"
    )


def open_image(
    image: Image,
    *,
    pages: tuple[int, int],
    utilization: float = UTILIZATION,
    poison: bool = False,
    whole: bool = True,
    driver: Driver | None = None,
) -> CudaExecutor:
    """An executor with `pages[1]` KV pages, or as many as fit, never below `pages[0]`.

    `whole` waits until every graph is made, which else goes on beside the first passes.
    """
    driver = driver or Driver()
    sizes = region_bytes(image, 0)
    for pool in sizes.keys() & {"kv", "draft_kv"}:
        del sizes[pool]
    with _context(driver, image.device):
        free, total = driver.memory()
        room = Room(total, free, utilization)
        fixed = sizes | {"kernels and graphs": CODE_BYTES}
        num_pages = pages_that_fit(fixed, room, image.geometry.pool_bytes, pages)
        executor = CudaExecutor(image, num_pages=num_pages, poison=poison, driver=driver)
    try:
        if whole:
            executor.finish()
    except BaseException:
        with suppress(DeviceError):  # of a GPU that is gone; why it went matters more
            executor.close()
        raise
    return executor


@contextmanager
def _context(driver: Driver, ordinal: int) -> Iterator[None]:
    """The GPU's primary context on this thread while memory is counted; an executor keeps it for itself."""
    device = driver.device(ordinal)
    context = driver.retain(device)
    try:
        driver.set_current(context)
        yield
    finally:
        with suppress(DeviceError):  # of a GPU that is gone, which the next call tells
            driver.release(device)
