"""Tandem: language models compiled ahead of time, served with one arithmetic."""

from tandem.errors import TandemError

__all__ = ["TandemError", "__version__"]
__version__ = "0.1.0"
