"""The order of launches on the GPU: when a kernel may read what earlier ones wrote, and when the next may start.

Launches follow each other with programmatic dependence (CUDA Programming Guide, "Programmatic Dependent Launch and
Synchronization"): a kernel's blocks start while the one before it still runs, and wait here before they touch anything
but weights. Every block of every kernel calls one of these two, which makes "after the one before" hold for all before.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(PDL: tl.constexpr):
    """For a kernel that leaves most of the device free: the next one's blocks start at once, this one waits."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def begin_alone(PDL: tl.constexpr):
    """For a kernel that wants the whole device: waits, and only then lets the next one's blocks start.

    Blocks of a third kernel would take places of this one's, and share out multiprocessors unevenly among their own.
    """
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
