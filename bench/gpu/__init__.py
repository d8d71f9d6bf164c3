"""Figures on a GPU: started as modules from the repository's root, and at home with the modules one folder up."""

import sys
from pathlib import Path

_BENCH = str(Path(__file__).resolve().parent.parent)
if _BENCH not in sys.path:
    sys.path.insert(0, _BENCH)  # figure, spread: the words that all figures are printed in
