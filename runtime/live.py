"""What people watch: how full the engine is, and what it did between two looks.

Knows nothing of pages, terminals or HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from tandem.runtime.meter import Meter


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Lanes, places of the queue and KV pages: those taken, and all. A request reserves all pages it may need."""

    busy_lanes: int
    lanes: int
    waiting: int
    places: int
    reserved_pages: int
    pages: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the engine's start, at `seconds` of a monotonic clock.

    `lane_rounds` counts a round once for each lane that it brought tokens, `round_tokens` those tokens: a request's
    first token comes out of its prefill.
    """

    seconds: float
    tokens: int
    round_tokens: int
    lane_rounds: int
    drafted: int
    accepted: int

    @staticmethod
    def of(meter: Meter) -> Totals:
        tokens = int(meter.generation_tokens.value)
        return Totals(
            seconds=monotonic(),
            tokens=tokens,
            round_tokens=tokens - meter.first_token.count,
            lane_rounds=meter.between.count,
            drafted=int(meter.drafted.value),
            accepted=int(meter.accepted.value),
        )
