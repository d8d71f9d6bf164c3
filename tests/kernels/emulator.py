"""Kernel calls on a machine that is emulated, with the face of `harness.call`. Knows no kernel."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tandem.kernels.build import read_signatures
from tests.kernels.harness import Argument, library

WALKER = Path(__file__).with_name("walker.cpp")
ALIGNMENT = 64


def build_walker(cxx: str, folder: Path) -> Path:
    """The program that calls kernels, for the machine that `cxx` compiles for."""
    subprocess.run([cxx, "-std=c++20", "-O1", str(WALKER), "-o", str(folder / "walker"), "-ldl"], check=True)
    return folder / "walker"


class Memory:
    """Arrays laid out one behind the other; views of one array share its place."""

    def __init__(self) -> None:
        self.places: dict[int, tuple[np.ndarray, int]] = {}
        self.nbytes = 0

    def offset(self, array: np.ndarray) -> int:
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        assert root.flags.c_contiguous
        if id(root) not in self.places:
            self.places[id(root)] = root, self.nbytes
            self.nbytes += -(-root.nbytes // ALIGNMENT) * ALIGNMENT
        return self.places[id(root)][1] + array.ctypes.data - root.ctypes.data

    def image(self) -> bytearray:
        out = bytearray(self.nbytes)
        for array, place in self.places.values():
            out[place : place + array.nbytes] = array.tobytes()
        return out

    def take(self, image: bytes) -> None:
        """Puts what an image holds into the arrays."""
        for array, place in self.places.values():
            if array.flags.writeable:
                array.reshape(-1).view(np.uint8)[:] = np.frombuffer(image, np.uint8, array.nbytes, place)


@dataclass(frozen=True, slots=True)
class Emulator:
    """Runs `walker` under the words `command`. The native library says what arguments a kernel takes."""

    command: Sequence[str]
    walker: Path
    library: Path
    folder: Path

    def call(self, path: Path, kernel: str, threads: int = 1, **arguments: Argument) -> None:
        """One launch of `kernel`, of the emulated machine's library wherever `path` is."""
        memory, words = Memory(), [f"tdm_{kernel} {threads}"]
        for param in read_signatures(library())[kernel]:
            value = arguments[param.name]
            if param.kind in ("int", "real"):
                number = np.float64(value) if param.kind == "real" else np.int64(value)
                words.append(f"0 {number.view(np.uint64)}")
            elif value is None:
                words.append("0 0")
            else:
                array = value if isinstance(value, np.ndarray) else np.array([value], np.int32)
                words.append(f"1 {memory.offset(array)}")
        (self.folder / "call").write_text("\n".join(words))
        (self.folder / "memory").write_bytes(memory.image())
        words = [*self.command, *map(str, (self.walker, self.library, self.folder / "call", self.folder / "memory"))]
        subprocess.run(words, check=True)
        memory.take((self.folder / "memory").read_bytes())
