"""Times on the device: calls in a CUDA graph between two events, and how fast memory can be read there at all.

Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl

from spread import Spread

Call = Callable[[], object]
READ_BYTES = 6 << 30
"""What the ceiling is read over: a hundred times the second-level cache."""


def graph_us(calls: Sequence[Call], *, repeats: int = 20) -> Spread:
    """Microseconds of one call, the mean over a graph of all `calls`, which are captured in order; `repeats` replays.

    Give as many calls over different data as outgrow the cache.
    """
    graph = captured(calls)
    return replays_ms(graph.replay, repeats).times(1e3 / len(calls))


def captured(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """The calls as a CUDA graph, after each has run once."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def replays_ms(play: Call, repeats: int, warmup: int = 3) -> Spread:
    """Milliseconds of each of `repeats` runs of `play` on the current stream, by events."""
    for _ in range(warmup):
        play()
    taken = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        play()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end))
    return Spread.of(taken)


@triton.jit
def _read(x, y, COUNT: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """Sums of what each of PROGRAMS reads of x, int32 [COUNT]; 16 bytes a thread and load."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, COUNT, PROGRAMS * BLOCK):
        total += tl.load(x + start + place)
    tl.store(y + tl.program_id(0), tl.sum(total, 0))


def read_ceiling(nbytes: int = READ_BYTES, *, repeats: int = 20) -> Spread:
    """Bytes a second at which `nbytes` of random data are read once: the best of several block sizes and grids."""
    data = torch.randint(-(2**31), 2**31 - 1, (nbytes // 4,), dtype=torch.int32, device="cuda")
    cores = torch.cuda.get_device_properties(0).multi_processor_count
    found: list[Spread] = []
    for block, per_core in ((4096, 4), (4096, 8), (8192, 4), (2048, 16)):
        programs = per_core * cores
        count = data.numel() // (programs * block) * programs * block
        sums = torch.empty(programs, dtype=torch.int32, device="cuda")

        def play(block: int = block, programs: int = programs, count: int = count, sums: torch.Tensor = sums) -> None:
            _read[(programs,)](data, sums, COUNT=count, BLOCK=block, PROGRAMS=programs, num_warps=block // 512)

        times = replays_ms(play, repeats)
        found.append(Spread.of(4e3 * count / ms for ms in times.runs))
    return max(found, key=lambda rate: rate.median)


def pinned_copy_rate(nbytes: int = 1 << 30, *, repeats: int = 8) -> Spread:
    """Bytes a second from page-locked memory of the host to the device."""
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).random_(0, 256)
    device = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    times = replays_ms(lambda: device.copy_(host, non_blocking=True), repeats)
    return Spread.of(1e3 * nbytes / ms for ms in times.runs)
