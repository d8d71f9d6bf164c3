"""What this machine is: architecture, ISA level, product, cores and memory, read once per process start.

Knows nothing of bundles; `tandem.artifacts.fit` compares these facts with what a bundle asks for.
"""

from __future__ import annotations

import math
import os
import platform
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_V2 = ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3")
_V3 = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
_V4 = ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

ISA_FLAGS: dict[str, tuple[str, ...]] = {
    "x86-64-v2": _V2,
    "x86-64-v3": _V2 + _V3,
    "x86-64-v4": _V2 + _V3 + _V4,
    "x86-64-v4-vnni": _V2 + _V3 + _V4 + ("avx512_vnni",),
    "x86-64-v4-bf16": _V2 + _V3 + _V4 + ("avx512_bf16", "avx512_vnni"),
    "aarch64": ("asimd", "fp"),
    "generic": (),
}
"""CPU flags each ISA level needs, as /proc/cpuinfo spells them (pni is SSE3, abm is LZCNT)."""

CUDA = "cuda-"
"""How the names of devices begin that are NVIDIA GPUs."""

_ARCH = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "aarch64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about a machine. `cores` are physical cores this process may use, `memory` is in bytes."""

    arch: str
    isa_level: str
    flags: frozenset[str]
    abi: str
    product: str
    cores: int
    memory: int

    @property
    def device(self) -> str:
        """The name of this machine as a CPU device, such as `cpu-x86-64-v3`."""
        return f"cpu-{self.isa_level}"

    def missing_flags(self, needed: Iterable[str]) -> list[str]:
        """The CPU flags of `needed` that this machine lacks, sorted."""
        return sorted(set(needed) - self.flags)


def this_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> Machine:
    """The machine this process runs on. Where `cpuinfo` cannot be read, no CPU flags are claimed."""
    text = cpuinfo.read_text(errors="replace") if cpuinfo.is_file() else ""
    arch = _ARCH.get(platform.machine().lower(), platform.machine().lower())
    flags = frozenset(_first(text, "flags", "Features").split())
    return Machine(
        arch=arch,
        isa_level=isa_level(arch, flags),
        flags=flags,
        abi=_abi(),
        product=slug(_first(text, "model name", "Model") or platform.processor() or arch),
        cores=_cores(text),
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )


def isa_level(arch: str, flags: Iterable[str]) -> str:
    """The highest ISA level of `ISA_FLAGS` that `arch` with these CPU flags holds; `generic` if none."""
    held = set(flags)
    family = [level for level in reversed(ISA_FLAGS) if level.startswith(arch) and level != "generic"]
    return next((level for level in family if held.issuperset(ISA_FLAGS[level])), "generic")


def cuda_device(capability: str) -> str:
    """The name of NVIDIA GPUs of a compute capability as a device: `cuda-sm90` for 9.0."""
    return f"{CUDA}sm{capability.replace('.', '')}"


def slug(product: str) -> str:
    """A product name as a file name and JSON key: lower case, words joined by hyphens, no trademark signs."""
    plain = re.sub(r"\((r|tm|c)\)", " ", product.lower())
    return re.sub(r"[^a-z0-9.]+", "-", plain.partition("@")[0]).strip("-.") or "unknown"


def _first(cpuinfo: str, *keys: str) -> str:
    for key in keys:
        if match := re.search(rf"^{key}[ \t]*:[ \t]*(.*)$", cpuinfo, re.MULTILINE):
            return match.group(1).strip()
    return ""


def _abi() -> str:
    names = getattr(os, "confstr_names", {})
    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in names else None
    return f"{sys.platform}-{libc.split()[0]}" if libc else sys.platform


def _cores(cpuinfo: str) -> int:
    """Distinct (socket, core) pairs among the CPUs this process may run on, no more than a container's quota."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores: set[tuple[str, str]] = set()
    for block in cpuinfo.split("\n\n"):
        number = _first(block, "processor")
        if number.isdecimal() and int(number) in usable:
            cores.add((_first(block, "physical id"), _first(block, "core id") or number))
    return max(1, min(len(cores) or len(usable), _quota()))


def _quota(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """CPUs' worth of time a control group grants, rounded up; a very large number where nothing limits it."""
    try:
        quota, period = limit.read_text().split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):
        return sys.maxsize
