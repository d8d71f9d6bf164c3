"""The weights file: a safetensors file written tensor by tensor and read through a memory map.

Every tensor starts at a multiple of 64 bytes: the header is padded, and so is what follows an odd-sized tensor,
with a U8 tensor, since safetensors allows no holes. Knows nothing of models or kernel layouts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import numpy as np

from tandem.artifacts.weights_header import TensorSpan, read_header

ALIGNMENT = 64


class WeightsWriter:
    """Writes the tensors announced as (name, dtype, shape), in that order, without holding more than one.

    dtypes are safetensors names (`F32`, `BF16`, ...); BF16 comes as uint16 arrays or bytes. Leaving the `with` block
    without an error closes a complete, synced file.
    """

    def __init__(self, path: Path, tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> None:
        self.path = path
        self._spans, pads = _plan(tensors)
        self._waiting = list(self._spans)[::-1]
        self._file = open(path, "xb")  # noqa: SIM115
        self._file.write(_header({**self._spans, **pads}))

    def write(self, name: str, data: np.ndarray | bytes | memoryview) -> None:
        """Appends tensor `name`: an array of its shape, or its bytes in C order, little endian."""
        span = self._spans[name]
        assert self._waiting[-1:] == [name], f"{name} is out of order"
        self._waiting.pop()
        if isinstance(data, np.ndarray):
            assert data.shape == span.shape, f"{name}: {span.shape} announced, {data.shape} given"
            assert data.dtype.byteorder != ">", f"{name}: big endian"
            data = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        nbytes = memoryview(data).nbytes
        assert nbytes == span.nbytes, f"{name}: {span.nbytes} bytes announced, {nbytes} given"
        self._file.write(data)
        self._file.write(bytes(-span.nbytes % ALIGNMENT))

    def close(self) -> None:
        """Ends the file. Every announced tensor has been written."""
        assert not self._waiting, f"{self._waiting[-1]} was announced, but not written"
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> WeightsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


class MappedWeights:
    """The weights file at `path`, checked and mapped; `data` is all of it, uint8, read-only.

    BundleCorrupt, which names what is wrong, if the header does not hold.
    """

    def __init__(self, path: Path) -> None:
        self._base, self.spans = read_header(path, ALIGNMENT)
        self.data = np.memmap(path, dtype=np.uint8, mode="r")

    def offset(self, name: str) -> int:
        """Absolute byte offset of a tensor in the file and in `data`. KeyError for an unknown name."""
        return self._base + self.spans[name].begin

    def shape(self, name: str) -> tuple[int, ...]:
        return self.spans[name].shape

    def dtype(self, name: str) -> str:
        """The safetensors name of the element type, such as `BF16`."""
        return self.spans[name].dtype

    def bytes(self, name: str) -> np.ndarray:
        """The tensor's bytes: a uint8 view into `data`."""
        return self.data[self.offset(name) : self.offset(name) + self.spans[name].nbytes]


def _plan(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[dict[str, TensorSpan], dict[str, TensorSpan]]:
    """Where each tensor goes, in order, and the padding between them."""
    spans: dict[str, TensorSpan] = {}
    pads: dict[str, TensorSpan] = {}
    offset = 0
    for name, dtype, shape in tensors:
        assert name not in spans and not name.startswith("pad."), f"{name} is announced twice or looks like padding"
        spans[name] = TensorSpan.place(dtype, tuple(shape), offset)
        offset = spans[name].end
        if rest := -offset % ALIGNMENT:
            pads[f"pad.{len(pads)}"] = TensorSpan.place("U8", (rest,), offset)
            offset += rest
    return spans, pads


def _header(spans: dict[str, TensorSpan]) -> bytes:
    entries = {
        name: {"dtype": s.dtype, "shape": list(s.shape), "data_offsets": [s.begin, s.end]} for name, s in spans.items()
    }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
