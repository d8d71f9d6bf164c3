"""Runs a bundle's programs as CUDA graphs that are rebuilt from data, over the driver API alone."""
