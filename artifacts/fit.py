"""Grades a machine against what a bundle asks for, each reason with field, wanted and found.

Knows nothing of how either was found out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tandem.artifacts.manifest import Host, PriceFacts, Validity
from tandem.device import ISA_FLAGS, Machine
from tandem.errors import BundleMismatch

MEMORY_TOLERANCE = 0.1
"""Share of memory by which two machines of one product may differ: firmware and kernels keep some."""


class Grade(StrEnum):
    """How well a machine suits a bundle, best first."""

    OPTIMAL = "optimal"
    STALE_PRICES = "stale prices"
    REBUILD_ADVISED = "rebuild advised"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Reason:
    """One difference and the grade it leads to."""

    grade: Grade
    field: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.field}: {self.wanted} wanted, {self.found} found"


@dataclass(frozen=True, slots=True)
class Fit:
    """The worst grade of all reasons; `optimal` without any."""

    grade: Grade
    reasons: tuple[Reason, ...]

    def require(self) -> None:
        """BundleMismatch, which names every reason, if the machine is refused."""
        if self.grade is Grade.REFUSED:
            reasons = "; ".join(str(r) for r in self.reasons if r.grade is Grade.REFUSED)
            raise BundleMismatch(f"not for this machine: {reasons}; compile the model on this kind of machine")


def grade(host: Host, machine: Machine) -> Fit:
    """How well `machine` suits a bundle that asks for `host`."""
    reasons = (*_refusals(host.validity, machine), *_advice(host.validity, machine), *_prices(host.price, machine))
    order = list(Grade)
    worst = max((r.grade for r in reasons), key=order.index, default=Grade.OPTIMAL)
    return Fit(worst, reasons)


def _refusals(wanted: Validity, found: Machine) -> Iterator[Reason]:
    for field in ("arch", "abi"):
        if getattr(wanted, field) != getattr(found, field):
            yield Reason(Grade.REFUSED, f"host.validity.{field}", getattr(wanted, field), getattr(found, field))
    # A level this version does not know asks for more than its name can prove.
    if wanted.isa_level not in ISA_FLAGS:
        yield Reason(Grade.REFUSED, "host.validity.isa_level", wanted.isa_level, found.isa_level)
    missing = found.missing_flags({*wanted.flags, *ISA_FLAGS.get(wanted.isa_level, ())})
    if missing and wanted.arch == found.arch:
        yield Reason(Grade.REFUSED, "host.validity.flags", " ".join(missing), f"none of them on {found.product}")


def _advice(wanted: Validity, found: Machine) -> Iterator[Reason]:
    used, held = ISA_FLAGS.get(wanted.isa_level), ISA_FLAGS[found.isa_level]
    if used is not None and wanted.arch == found.arch and set(used) < set(held):
        yield Reason(Grade.REBUILD_ADVISED, "host.validity.isa_level", wanted.isa_level, found.isa_level)


def _prices(wanted: PriceFacts, found: Machine) -> Iterator[Reason]:
    if wanted.product != found.product:
        yield Reason(Grade.STALE_PRICES, "host.price.product", wanted.product, found.product)
    if wanted.cores != found.cores:
        yield Reason(Grade.STALE_PRICES, "host.price.cores", str(wanted.cores), str(found.cores))
    if abs(wanted.memory - found.memory) > MEMORY_TOLERANCE * wanted.memory:
        yield Reason(Grade.STALE_PRICES, "host.price.memory", _gib(wanted.memory), _gib(found.memory))


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
