"""The order of launches on the GPU: when a kernel may read what earlier ones wrote, and when the next may start.

Launches follow each other with programmatic dependence (CUDA Programming Guide, "Programmatic Dependent Launch and
Synchronization"): a kernel's blocks start while the one before it still runs, and wait here before they touch anything
but what no kernel of the program writes: weights, what a pass was given (its numbers of rows, lanes, positions, slots,
block tables), keys, values and states of earlier passes. Those are asked for before the wait, so that nobody waits for
them behind it. Every block of every kernel waits, which makes "after the one before" hold for all before.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def prefetch_lines(rows, LINES: tl.constexpr, STEP: tl.constexpr):
    """Asks L2 for LINES lines, STEP elements each, from each of the addresses `rows` on."""
    line = rows[:, None] + tl.arange(0, LINES)[None, :] * STEP
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [line], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def let_next(PDL: tl.constexpr):
    """The next kernel's blocks may start from here on, once all blocks of this one are here."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait(PDL: tl.constexpr):
    """Waits until the kernel before, and so all before it, has ended and what it wrote can be read."""
    if PDL:
        gdc_wait()


@triton.jit
def begin(count, PDL: tl.constexpr):
    """The number at `count`. For a kernel that leaves most of the device free: the next one's blocks start at once,
    this one waits."""
    let_next(PDL)
    number = tl.load(count)
    wait(PDL)
    return number


@triton.jit
def begin_alone(count, PDL: tl.constexpr):
    """The number at `count`. For a kernel that wants the whole device: waits, and only then lets the next one's blocks
    start.

    Blocks of a third kernel would take places of this one's, and share out multiprocessors unevenly among their own.
    """
    number = tl.load(count)
    wait(PDL)
    let_next(PDL)
    return number
