"""The order of launches on the GPU: when a kernel may read what earlier ones wrote, and when the next may start.

Launches follow each other with programmatic dependence (CUDA Programming Guide, "Programmatic Dependent Launch and
Synchronization"): a kernel's blocks start while the one before it still runs, and wait here before they touch anything
but weights. Every block of every kernel calls `begin`, which makes "after the one before" hold for all before.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(PDL: tl.constexpr):
    """Lets the next kernel's blocks start, then waits for the end of the kernel before."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
