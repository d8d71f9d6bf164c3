"""The driver's signatures, numbers and structs against NVIDIA's own header, and its errors as words."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
from ctypes import c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from pathlib import Path

import pytest

from tandem import libcuda
from tandem.errors import DeviceError
from tandem.libcuda import SIGNATURES, functions
from tests.fake_driver import FakeCuda

PLAIN = {
    "int": c_int,
    "unsigned int": c_uint,
    "unsigned char": c_ubyte,
    "unsigned long long": c_uint64,
    "size_t": c_size_t,
    "CUdeviceptr": c_uint64,
    "CUdevice": c_int,
    "CUresult": c_int,
    "CUfunction_attribute": c_int,
    "CUdevice_attribute": c_int,
}


@pytest.fixture(scope="module")
def header() -> Path:
    """cuda.h, which Triton brings along."""
    found = importlib.util.find_spec("triton")
    folder = Path((found.submodule_search_locations or [""])[0] if found else "", "backends/nvidia/include")
    if not (folder / "cuda.h").is_file() or not shutil.which("g++"):
        pytest.skip("no cuda.h or no compiler to read it with")
    return folder


def prototypes(header: Path, *options: str) -> dict[str, list[str]]:
    """Types of parameters by the symbol's name, as the preprocessor leaves them."""
    command = ["g++", "-E", "-P", "-x", "c++", *options, str(header / "cuda.h")]
    text = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    found = re.findall(r"\bCUresult\s+(cu\w+)\s*\(([^()]*)\)", text)
    return {name: [" ".join(p.split()) for p in given.split(",") if p.strip() != "void"] for name, given in found}


def ctype(parameter: str) -> object:
    """What ctypes calls a parameter's type: pointers and handles are addresses, text is text."""
    kind = re.match(r"(?:const )?([\w ]*?\w)\s*(\**)\s*\w+$", parameter)
    assert kind, parameter
    name, stars = kind.groups()
    if stars:
        return c_char_p if (name, stars) == ("char", "*") and parameter.startswith("const") else c_void_p
    return PLAIN.get(name, c_void_p)


def test_signatures_are_those_of_cuda_h(header: Path) -> None:
    named = prototypes(header, "-D__CUDA_API_VERSION_INTERNAL") | prototypes(header)
    assert {name: [ctype(p) for p in named[name]] for name in SIGNATURES} == {
        name: list(types) for name, types in SIGNATURES.items()
    }


def test_numbers_are_those_of_cuda_h(header: Path) -> None:
    text = (header / "cuda.h").read_text()

    def number(name: str) -> int:
        found = re.search(rf"\b{name}\s*=\s*(0x[0-9a-fA-F]+|\d+)", text)
        assert found, name
        return int(found.group(1), 0)

    for name in ("INVALID_VALUE", "OUT_OF_MEMORY", "INVALID_IMAGE", "NO_BINARY_FOR_GPU", "NOT_FOUND"):
        assert getattr(libcuda, name) == number(f"CUDA_ERROR_{name}")
    remedied = {number(f"CUDA_ERROR_{name}"): words for name, words in (
        ("OUT_OF_MEMORY", "free memory"),
        ("STUB_LIBRARY", "stub"),
        ("NO_DEVICE", "no GPU is visible"),
        ("INVALID_DEVICE", "no GPU of that number"),
        ("INVALID_IMAGE", "damaged"),
        ("NO_BINARY_FOR_GPU", "compile the bundle for this GPU"),
        ("NOT_FOUND", "compile the bundle again"),
        ("SYSTEM_NOT_READY", "fabricmanager"),
        ("SYSTEM_DRIVER_MISMATCH", "differ"),
        ("COMPAT_NOT_SUPPORTED_ON_DEVICE", "compatibility"),
    )}  # fmt: skip
    assert remedied.keys() == libcuda.REMEDIES.keys()
    assert all(words in libcuda.REMEDIES[code] for code, words in remedied.items())
    for name in ("ILLEGAL_ADDRESS", "LAUNCH_FAILED", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS"):
        assert number(f"CUDA_ERROR_{name}") in libcuda.BROKEN


def test_a_driver_that_is_too_old_says_which_one_is_wanted() -> None:
    with pytest.raises(DeviceError, match=r"no cuGraphAddNode_v2: update to driver 550 \(CUDA 12.4\) or later"):
        functions(FakeCuda(missing=["cuGraphAddNode_v2"]))


def test_a_machine_without_a_driver_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(DeviceError, match=r"no NVIDIA driver here .*libcuda.so.1.*; install driver 550"):
        functions()
