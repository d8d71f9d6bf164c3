"""Tiny models composed and bound to an executor without sealing a bundle: weights, programs, the tests' library.

For tests of what programs compute; knows nothing of engines or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tandem.artifacts.program import Program, decode, encode
from tandem.artifacts.weights import MappedWeights
from tandem.compile.cpu import panels
from tandem.compile.cpu.composer import CpuComposer, geometry
from tandem.compile.drafters import Drafter
from tandem.compile.models.families import resolve
from tandem.compile.models.sources import TensorSource
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.profile import find_profile
from tandem.compile.store import write_weights
from tandem.kernels.build import read_signatures
from tandem.keys import Kind
from tandem.runtime.executor.cpu import CpuExecutor, Image
from tandem.runtime.executor.library import Library
from tandem.runtime.executor.snapshot import Snapshot
from tandem.runtime.rows import Span, commit_moves, extend_rows, verify_rows
from tandem.tree import DraftTree
from tests.kernels.harness import library


@dataclass(frozen=True, slots=True)
class Staged:
    """A composed model: `image` is what executors take, less the library, which has a team of threads of its own."""

    spec: LlamaSpec
    weights: MappedWeights
    composer: CpuComposer
    programs: dict[Kind, Program]

    def executor(self, *, threads: int = 2, num_pages: int = 24, poison: bool = True) -> CpuExecutor:
        image = Image(self.composer.geometry, self.weights.data, Library(library(), threads), self.programs)
        return CpuExecutor(image, num_pages=num_pages, poison=poison)


def stage(
    config: dict[str, object],
    tensors: TensorSource,
    profile: str,
    folder: Path,
    *,
    context_length: int = 256,
    max_rows: int = 64,
    max_lanes: int = 4,
    kinds: Sequence[Kind] | None = None,
    drafter: Drafter | None = None,
) -> Staged:
    """Writes weights into `folder` and composes programs, all or of `kinds`, each once through its file format."""
    spec, chosen = resolve(config), find_profile(profile)
    write_weights(
        spec,
        chosen,
        tensors,
        folder / f"{profile}.safetensors",
        layout=panels,
        context_length=context_length,
        drafter=drafter,
    )
    weights = MappedWeights(folder / f"{profile}.safetensors")
    sizes = geometry(spec, chosen, context_length, max_rows=max_rows, max_lanes=max_lanes, drafter=drafter)
    block = drafter.block if drafter else None
    composer = CpuComposer(spec, chosen, sizes, weights, read_signatures(library()), "0" * 64, block=block)
    programs = {kind: decode(encode(composer.program(kind)), kind) for kind in kinds or sizes.kinds}
    return Staged(spec, weights, composer, programs)


class Lane:
    """One lane of an executor, its pages scattered; every method gives logits [rows, V] and keeps count of the text.

    `length` may be set to where an `extend` or a `commit` once ended: a recurrent state, in `slot`, is put back.
    """

    def __init__(self, executor: CpuExecutor, pages: Sequence[int] | None = None, slot: int = 0) -> None:
        blocks = executor.geometry.blocks_per_lane
        self.executor, self.slots = executor, [slot] if executor.num_slots else []
        self._length, self._saved, self._tree = 0, dict[int, Snapshot](), DraftTree.root(0)
        self.pages = list(pages or range(executor.num_pages)[::-1])[:blocks]
        self.table = np.zeros((1, blocks), np.int32)
        self.table[0, : len(self.pages)] = self.pages

    @property
    def length(self) -> int:
        return self._length

    @length.setter
    def length(self, length: int) -> None:
        if self.slots and length:
            self.executor.restore(self.slots[0], self._saved[length])
        self._length = length

    def _advance(self, count: int) -> None:
        self._length += count
        if self.slots:
            self._saved[self._length] = self.executor.save(self.slots[0], self._length)

    def extend(self, ids: Sequence[int], chunk: int = 32) -> np.ndarray:
        """Keeps `ids`, `chunk` of them in a pass; logits of the last 32 rows of each pass."""
        found = []
        for begin in range(0, len(ids), chunk):
            part = list(ids[begin : begin + chunk])
            rows = extend_rows([Span(0, self.length, part, outputs=1)], self.table, self.slots)
            first = max(0, len(part) - self.executor.geometry.max_outputs)
            rows.output_row = range(first, len(part))
            self.executor.run(Kind.EXTEND, rows)
            found.append(self._logits(len(rows.output_row)))
            self._advance(len(part))
        return np.concatenate(found)

    def verify(self, kind: Kind, tree: DraftTree) -> np.ndarray:
        self._tree = tree
        self.executor.run(kind, verify_rows(kind, [0], [self.length], [tree], self.table, self.slots))
        return self._logits(len(tree))

    def commit(self, path: Sequence[int]) -> None:
        moves = commit_moves([0], [self.length], [self._tree], [path], self.table, self.slots)
        if moves.lane:
            self.executor.commit(moves)
        self._advance(len(path))

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        tokens = [int(self.extend(prompt)[-1].argmax())]
        while len(tokens) < num_tokens:
            tokens.append(int(self.extend(tokens[-1:])[-1].argmax()))
        return tokens

    def state(self) -> bytes:
        state = self.executor.save(self.slots[0], self.length).state.tobytes() if self.slots else b""
        return self.executor.kv(self.pages, self.length) + state

    def _logits(self, count: int) -> np.ndarray:
        return np.stack([self.executor.logits(i) for i in range(count)])
