"""Triton kernels of the operators, one file per operator; `launch` is how the lowering finds and launches them."""
