"""JSON with one spelling per value: what manifests are written in and what digests are taken of.

Knows nothing of what the values mean.
"""

from __future__ import annotations

import json
import math
from typing import Any

from tandem.artifacts.layout import REMEDY
from tandem.errors import BundleCorrupt

MAX_JSON_DEPTH = 32


def encode(value: object) -> bytes:
    """Sorted keys, two spaces of indent, a newline at the end: for people. ValueError for NaN or infinity."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def encode_compact(value: object) -> bytes:
    """Sorted keys, no spaces: for digests. ValueError for NaN or infinity."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def decode(data: bytes, where: str, remedy: str = REMEDY) -> Any:
    """The value of strict JSON. BundleCorrupt, which names `where` and says `remedy`, for anything a strict reader may
    not accept."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_number, parse_float=_number)
    except RecursionError:
        raise BundleCorrupt(f"{where}: nested deeper than {MAX_JSON_DEPTH}; {remedy}") from None
    except UnicodeDecodeError as error:
        raise BundleCorrupt(f"{where}: not UTF-8 at byte {error.start}; {remedy}") from None
    except ValueError as error:
        raise BundleCorrupt(f"{where}: not strict JSON: {error}; {remedy}") from None
    if _deeper_than(value, MAX_JSON_DEPTH):
        raise BundleCorrupt(f"{where}: nested deeper than {MAX_JSON_DEPTH}; {remedy}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"duplicate key {key!r}")
        value[key] = item
    return value


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [child for v in level for child in _children(v)]
        if not level:
            return False
    return any(isinstance(v, dict | list) for v in level)


def _children(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
