"""Grades a machine against what a bundle asks for, each reason with field, wanted and found.

Knows nothing of how either was found out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tandem.artifacts.manifest import CudaPriceFacts, CudaValidity, Host, PriceFacts, Validity
from tandem.device import ISA_FLAGS, Machine
from tandem.errors import BundleMismatch
from tandem.gpu import Gpu

MEMORY_TOLERANCE = 0.1
"""Share of memory by which two machines of one product may differ: firmware and kernels keep some."""

REBUILD = "compile the model on this kind of machine"
REBUILD_GPU = "compile the model on the device that is here, or look at nvidia-smi and CUDA_VISIBLE_DEVICES"
UPDATE_DRIVER = "update the NVIDIA driver, or compile the model with this one"


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
    remedy: str = REBUILD

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
            refusals = [reason for reason in self.reasons if reason.grade is Grade.REFUSED]
            reasons, remedies = "; ".join(map(str, refusals)), " and ".join(dict.fromkeys(r.remedy for r in refusals))
            raise BundleMismatch(f"not for this machine: {reasons}; {remedies}")


def grade(host: Host, machine: Machine, gpus: Sequence[Gpu] = (), instead: str = "none") -> Fit:
    """How well `machine` with these `gpus` suits a bundle that asks for `host`.

    A bundle for CUDA is held against the GPU that `choose` names, and of the rest of the machine only the kind of its
    one library matters to it; `instead` says what there is where there is no GPU.
    """
    validity, price = host.validity, host.price
    if validity.cuda is not None:
        gpu = choose(validity.cuda, gpus)
        refusals = (*_cuda_refusals(validity.cuda, gpus, instead), *_other_kind(validity, machine))
        reasons = (*refusals, *(_gpu_prices(price.gpu, gpu) if gpu else ()))
    else:
        reasons = (*_refusals(validity, machine), *_advice(validity, machine), *_prices(price, machine))
    order = list(Grade)
    worst = max((r.grade for r in reasons), key=order.index, default=Grade.OPTIMAL)
    return Fit(worst, reasons)


def choose(wanted: CudaValidity, gpus: Sequence[Gpu]) -> Gpu | None:
    """The first of `gpus` that runs what is compiled for `wanted`: the one a server takes."""
    return next((g for g in gpus if g.capability == wanted.capability and _speaks(g, wanted)), None)


def _speaks(gpu: Gpu, wanted: CudaValidity) -> bool:
    found, least = (tuple(map(int, version.split("."))) for version in (gpu.driver, wanted.driver))
    return found >= least


def _cuda_refusals(wanted: CudaValidity, gpus: Sequence[Gpu], instead: str) -> Iterator[Reason]:
    alike = [gpu for gpu in gpus if gpu.capability == wanted.capability]
    if not alike:
        # Cubins run on no other capability, newer or older.
        found = ", ".join(f"{gpu.capability} ({gpu.product})" for gpu in gpus) or instead
        yield Reason(
            Grade.REFUSED, "host.validity.cuda", f"a GPU of compute capability {wanted.capability}", found, REBUILD_GPU
        )
    elif not _speaks(alike[0], wanted):
        speaks = f"a driver that speaks CUDA {wanted.driver} or later"
        yield Reason(Grade.REFUSED, "host.validity.cuda.driver", speaks, f"CUDA {alike[0].driver}", UPDATE_DRIVER)


def _gpu_prices(wanted: CudaPriceFacts | None, found: Gpu) -> Iterator[Reason]:
    if wanted is None:
        return
    for field in ("product", "multiprocessors"):
        if (asked := getattr(wanted, field)) != (given := getattr(found, field)):
            yield Reason(Grade.STALE_PRICES, f"host.price.gpu.{field}", str(asked), str(given))
    if abs(wanted.memory - found.memory) > MEMORY_TOLERANCE * wanted.memory:
        yield Reason(Grade.STALE_PRICES, "host.price.gpu.memory", _gib(wanted.memory), _gib(found.memory))


def _other_kind(wanted: Validity, found: Machine) -> Iterator[Reason]:
    for field in ("arch", "abi"):
        if getattr(wanted, field) != getattr(found, field):
            yield Reason(Grade.REFUSED, f"host.validity.{field}", getattr(wanted, field), getattr(found, field))


def _refusals(wanted: Validity, found: Machine) -> Iterator[Reason]:
    yield from _other_kind(wanted, found)
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
