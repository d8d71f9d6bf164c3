"""What a machine is, read from /proc/cpuinfo texts of several kinds of machines."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.device import ISA_FLAGS, isa_level, slug, this_machine

LEVELS = ("generic", "x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16")


def cpuinfo(cores: list[tuple[int, int]], flags: str, model: str) -> str:
    """A text as Linux writes it; `cores` gives (socket, core) of each CPU in turn."""
    return "\n".join(
        f"processor\t: {i}\nmodel name\t: {model}\nphysical id\t: {socket}\ncore id\t\t: {core}\nflags\t\t: {flags}\n"
        for i, (socket, core) in enumerate(cores)
    )


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr("tandem.device._quota", lambda: 64)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize(
    ("cores", "wanted"),
    [
        ([(0, 0), (0, 1), (0, 2), (0, 3)], 4),
        ([(0, 0), (0, 0), (0, 1), (0, 1)], 2),  # two threads a core
        ([(0, 0), (1, 0), (0, 0), (1, 0)], 2),  # two sockets number their cores alike
        ([(0, i) for i in range(16)], 4),  # only those this process may use
    ],
)
def test_cores_are_physical_and_usable(tmp_path: Path, cores: list[tuple[int, int]], wanted: int) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo(cores, " ".join(ISA_FLAGS["x86-64-v3"]), "AMD EPYC 7B13"))
    machine = this_machine(tmp_path / "cpuinfo")
    assert machine.cores == wanted
    assert (machine.device, machine.product) == ("cpu-x86-64-v3", "amd-epyc-7b13")
    assert machine.missing_flags(["avx2", "avx512f", "amx_tile"]) == ["amx_tile", "avx512f"]


@pytest.mark.usefixtures("four_cpus")
def test_a_containers_quota_limits_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.device._quota", lambda: 2)
    assert this_machine(tmp_path / "absent").cores == 2


@pytest.mark.usefixtures("four_cpus")
def test_without_cpuinfo_nothing_is_claimed(tmp_path: Path) -> None:
    machine = this_machine(tmp_path / "absent")
    assert (machine.arch, machine.isa_level, machine.flags, machine.cores) == ("x86-64", "generic", frozenset(), 4)


def test_arm_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd evtstrm aes\nCPU part\t: 0xd0c\n")
    assert this_machine(tmp_path / "cpuinfo").device == "cpu-aarch64"


@given(st.sets(st.sampled_from(sorted(ISA_FLAGS["x86-64-v4-bf16"]))))
def test_the_level_is_the_highest_whose_flags_are_all_there(flags: set[str]) -> None:
    level = isa_level("x86-64", flags)
    assert flags.issuperset(ISA_FLAGS[level])
    higher = LEVELS[LEVELS.index(level) + 1 :]
    assert all(not flags.issuperset(ISA_FLAGS[name]) for name in higher)
    assert isa_level("riscv64", flags) == "generic"


@pytest.mark.parametrize(
    ("product", "wanted"),
    [
        ("AMD EPYC 9654 96-Core Processor", "amd-epyc-9654-96-core-processor"),
        ("Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz", "intel-xeon-platinum-8480-cpu"),
        ("  ", "unknown"),
    ],
)
def test_products_become_file_names(product: str, wanted: str) -> None:
    assert slug(product) == wanted


def test_this_very_machine_is_known() -> None:
    machine = this_machine()
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert machine.memory > 1 << 28
