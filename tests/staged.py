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
from tandem.compile.models.families import resolve
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.models.sources import TensorSource
from tandem.compile.profile import find_profile
from tandem.compile.store import write_weights
from tandem.kernels.build import read_signatures
from tandem.keys import Kind
from tandem.runtime.executor.cpu import CpuExecutor, Image
from tandem.runtime.executor.library import Library
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
    kinds: Sequence[Kind] = tuple(Kind),
) -> Staged:
    """Writes weights into `folder` and composes the programs of `kinds`, each once through its file format."""
    spec, chosen = resolve(config), find_profile(profile)
    write_weights(
        spec, chosen, tensors, folder / f"{profile}.safetensors", layout=panels, context_length=context_length
    )
    weights = MappedWeights(folder / f"{profile}.safetensors")
    sizes = geometry(spec, chosen, context_length, max_rows=max_rows, max_lanes=max_lanes)
    composer = CpuComposer(spec, chosen, sizes, weights, read_signatures(library()), "0" * 64)
    programs = {kind: decode(encode(composer.program(kind)), kind) for kind in kinds}
    return Staged(spec, weights, composer, programs)


class Lane:
    """One lane of an executor, its pages scattered; every method gives logits [rows, V] and keeps count of the text."""

    def __init__(self, executor: CpuExecutor, pages: Sequence[int] | None = None) -> None:
        blocks = executor.geometry.blocks_per_lane
        self.executor, self.length = executor, 0
        self.pages = list(pages or range(executor.num_pages)[::-1])[:blocks]
        self.table = np.zeros((1, blocks), np.int32)
        self.table[0, : len(self.pages)] = self.pages

    def extend(self, ids: Sequence[int], chunk: int = 32) -> np.ndarray:
        """Keeps `ids`, `chunk` of them in a pass; logits of the last 32 rows of each pass."""
        found = []
        for begin in range(0, len(ids), chunk):
            part = list(ids[begin : begin + chunk])
            rows = extend_rows([Span(0, self.length, part, output=True)], self.table)
            first = max(0, len(part) - self.executor.geometry.max_outputs)
            rows.output_row = range(first, len(part))
            self.executor.run(Kind.EXTEND, rows)
            found.append(self._logits(len(rows.output_row)))
            self.length += len(part)
        return np.concatenate(found)

    def verify(self, kind: Kind, tree: DraftTree) -> np.ndarray:
        self.executor.run(kind, verify_rows(kind, [0], [self.length], [tree], self.table))
        return self._logits(len(tree))

    def commit(self, path: Sequence[int]) -> None:
        moves = commit_moves([0], [self.length], [path], self.table)
        if moves.lane:
            self.executor.commit(moves)
        self.length += len(path)

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        tokens = [int(self.extend(prompt)[-1].argmax())]
        while len(tokens) < num_tokens:
            tokens.append(int(self.extend(tokens[-1:])[-1].argmax()))
        return tokens

    def state(self) -> bytes:
        return self.executor.kv(self.pages, self.length)

    def _logits(self, count: int) -> np.ndarray:
        return np.stack([self.executor.logits(i) for i in range(count)])
