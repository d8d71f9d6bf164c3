"""`/live`: one look at the engine as JSON, for the page and whoever else watches. Rates are differences of two looks.

Knows nothing of how it is shown.
"""

from __future__ import annotations

from time import monotonic

import msgspec
from msgspec import Struct

from tandem.keys import Kind
from tandem.prices import context_key
from tandem.runtime.live import Occupancy, Totals
from tandem.runtime.service import Service

PERIOD_SECONDS = 0.25
"""How long a look is good for: however many watch, the engine is looked at four times a second at most."""

PRICES_SECONDS = 2.0
"""The same for prices, which cost ten times as much to tell as all else and move slowly."""


class Source(Struct):
    """Drafted tokens of one drafter that were verified, and those of them that were accepted."""

    drafted: int
    accepted: int


class Staircase(Struct):
    """Milliseconds of a pass with 1, 2, .. 32 rows in one context class, as the router takes them now."""

    context_class: int
    plain: list[float]
    chain: list[float]
    tree: list[float]


class Live(Struct):
    """Counts are since the server's start."""

    model: str
    fingerprint: str
    context_length: int
    chat_template: bool
    healthy: bool
    now: Occupancy
    prompt_tokens: int
    totals: Totals
    ended: dict[str, int]
    rounds: dict[str, int]
    plain_rounds: dict[str, int]
    sources: dict[str, Source]
    accepted_at: list[int]
    prices: list[Staircase]


class Watch:
    """Looks at a service on behalf of all who ask."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._seen, self._until = b"", 0.0
        self._prices, self._priced_until = list[Staircase](), 0.0

    def json(self) -> bytes:
        """A look at most PERIOD_SECONDS old, with prices at most PRICES_SECONDS old."""
        now = monotonic()
        if now >= self._until:
            if now >= self._priced_until:
                self._prices, self._priced_until = staircases(self._service), now + PRICES_SECONDS
            self._seen = msgspec.json.encode(look(self._service, self._prices))
            self._until = now + PERIOD_SECONDS
        return self._seen


def look(service: Service, prices: list[Staircase]) -> Live:
    worker, meter = service.worker, service.worker.meter
    accepted, drafted = meter.accepted_by.values.copy(), meter.drafted_by.values.copy()
    return Live(
        model=service.model,
        fingerprint=service.fingerprint,
        context_length=service.context_length,
        chat_template=service.chat.source is not None,
        healthy=worker.healthy,
        now=worker.occupancy(),
        prompt_tokens=int(meter.prompt_tokens.value),
        totals=Totals.of(meter),
        ended=_counts(meter.ended.values),
        rounds=_counts(meter.rounds.values),
        plain_rounds=_counts(meter.plain_rounds.values),
        sources={source: Source(int(n), int(accepted.get(source, 0))) for source, n in drafted.items()},
        accepted_at=_without_last_zeros(list(_counts(meter.accepted_at.values).values())),
        prices=prices,
    )


def staircases(service: Service) -> list[Staircase]:
    """Of the context classes that a request here can reach, the table's first one in any case."""
    prices, longest = service.worker.prices, context_key(service.context_length)
    first, *others = prices.classes()
    classes = [first, *(c for c in others if context_key(c) <= longest)]
    kinds = (Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE)
    return [Staircase(c, *([round(ms, 4) for ms in prices.staircase(c, kind)[1:]] for kind in kinds)) for c in classes]


def _counts(values: dict[str, float]) -> dict[str, int]:
    return {str(name): int(count) for name, count in values.copy().items()}


def _without_last_zeros(counts: list[int]) -> list[int]:
    return counts[: max((i for i, count in enumerate(counts, 1) if count), default=0)]
