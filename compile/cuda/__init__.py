"""From traced parts to programs of Triton kernels, one per row bucket and context class."""
