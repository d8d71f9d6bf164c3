"""Made-up figures of the gate, sound unless told otherwise."""

from __future__ import annotations

from typing import Any


def figures(prose: Any = 2.0, code: Any = 1.0, confident: tuple[int, int] = (1000, 1000), unique: float = 0.8) -> Any:
    """Figures of a profile against a reference with losses 2 and 1 and eight new 4-grams of ten."""
    return {
        "texts": [
            {"name": "prose", "tokens": 2048, "loss": prose, "reference_loss": 2.0},
            {"name": "code", "tokens": 2048, "loss": code, "reference_loss": 1.0},
        ],
        "agreement": {"positions": 4096, "equal": 3900, "confident": confident[0], "confident_equal": confident[1]},
        "generation": {
            "prompts": 8,
            "tokens": 900,
            "reference_tokens": 1000,
            "stops": 2,
            "reference_stops": 3,
            "unique_4grams": unique,
            "reference_unique_4grams": 0.8,
        },
    }
