"""Recorded texts: what was drafted at every position of known answers, so that any policy can be replayed on them.

Knows the file format and nothing of how drafts were made or what is replayed. Written as one .npz without pickles: flat
arrays over texts, positions, trees and nodes, and a JSON header.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tandem.errors import BundleCorrupt, UsageError
from tandem.prices import read_table
from tandem.tree import DraftTree

FORMAT = "tandem-recording-1"
DAMAGE = (
    *(KeyError, ValueError, TypeError, IndexError, OSError, EOFError, RuntimeError, MemoryError, SyntaxError),
    *(struct.error, zipfile.BadZipFile, zlib.error),
)
"""What readers of zip files, arrays and JSON make of changed bytes."""
ARRAYS = {
    "tokens": np.int32,  # of all answers
    "draft_ms": np.float32,  # a position: what asking the model took, 0 where none was
    "num_trees": np.int32,  # a position
    "num_nodes": np.int32,  # a tree
    "node_token": np.int32,
    "node_parent": np.int32,
    "node_score": np.float32,
    "node_source": np.uint8,  # an index into the header's sources
}


@dataclass(slots=True)
class Text:
    """One answer and its candidates: `drafts[i]` were proposed over `tokens[i - 1]` for `tokens[i:]`, none for i = 0.

    `draft_ms[i]` is the wall time of the model's part in them.
    """

    name: str
    workload: str
    num_prompt: int
    tokens: list[int]
    drafts: list[list[DraftTree]]
    draft_ms: list[float]

    def context(self, position: int) -> int:
        """Committed length in front of the anchor of that position."""
        return self.num_prompt + position - 1


@dataclass(slots=True)
class Recording:
    """`prices` is the table of the bundle, on whose device `about` says more."""

    texts: list[Text]
    prices: dict[str, Any]
    recurrent: bool = False
    about: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Writes the file, its parts compressed."""
        trees = [tree for text in self.texts for drafts in text.drafts for tree in drafts]
        sources = sorted({source for tree in trees for source in tree.sources})
        place = {source: i for i, source in enumerate(sources)}
        texts = [
            {"name": t.name, "workload": t.workload, "num_prompt": t.num_prompt, "num_tokens": len(t.tokens)}
            for t in self.texts
        ]
        header: dict[str, Any] = {"format": FORMAT, "texts": texts, "sources": sources, "prices": self.prices}
        header |= {"recurrent": self.recurrent, "about": self.about}
        values: dict[str, Any] = {
            "tokens": [token for text in self.texts for token in text.tokens],
            "draft_ms": [ms for text in self.texts for ms in text.draft_ms],
            "num_trees": [len(drafts) for text in self.texts for drafts in text.drafts],
            "num_nodes": [len(tree) for tree in trees],
            "node_token": [token for tree in trees for token in tree.tokens],
            "node_parent": [parent for tree in trees for parent in tree.parents],
            "node_score": [score for tree in trees for score in tree.scores],
            "node_source": [place[source] for tree in trees for source in tree.sources],
        }
        arrays: dict[str, Any] = {name: np.asarray(values[name], kind) for name, kind in ARRAYS.items()}
        try:
            with path.open("wb") as file:
                np.savez_compressed(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror})") from error


def load_recording(path: Path) -> Recording:
    """Reads and checks the file. UsageError says what is wrong with it."""
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("it is no .npz")
            parts = np.load(file, allow_pickle=False)
            header = json.loads(parts["header"].tobytes())
            arrays = {name: parts[name] for name in ARRAYS}
        return _read(header, arrays)
    except (IsADirectoryError, FileNotFoundError, PermissionError) as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except BundleCorrupt as error:
        raise UsageError(f"{path}: {error}") from error
    except DAMAGE as error:
        raise UsageError(
            f"{path}: not a recording, or a damaged one ({error}); record it again with tandem-check record"
        ) from error


def _read(header: Any, arrays: dict[str, np.ndarray]) -> Recording:
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']!r}, not {FORMAT!r}")
    for name, kind in ARRAYS.items():
        if arrays[name].dtype != kind or arrays[name].ndim != 1:
            raise ValueError(f"{name} is {arrays[name].dtype} in {arrays[name].ndim} dimensions")
    read_table(header["prices"])
    if not (np.isfinite(arrays["draft_ms"]).all() and (arrays["draft_ms"] >= 0).all()):
        raise ValueError("a draft_ms is not a time")
    trees = _trees(arrays, [str(source) for source in header["sources"]])
    drafts = list(_split(list(trees), arrays["num_trees"].tolist()))
    tokens, draft_ms = arrays["tokens"].tolist(), arrays["draft_ms"].tolist()
    if not len(tokens) == len(draft_ms) == len(drafts):
        raise ValueError("its arrays are of different lengths")
    lengths = [int(text["num_tokens"]) for text in header["texts"]]
    parts = zip(*(_split(values, lengths) for values in (tokens, drafts, draft_ms)), strict=True)
    texts = [
        Text(str(text["name"]), str(text["workload"]), int(text["num_prompt"]), *part)
        for text, part in zip(header["texts"], parts, strict=True)
    ]
    for text in texts:
        _check(text)
    return Recording(texts, header["prices"], bool(header["recurrent"]), dict(header["about"]))


def _check(text: Text) -> None:
    if text.num_prompt < 1 or not text.tokens or text.drafts[0]:
        raise ValueError(f"{text.name}: no prompt, no answer, or a draft before it begins")
    for token, drafts in zip(text.tokens, text.drafts[1:], strict=False):
        for tree in drafts:
            if not tree.is_tree or tree.tokens[0] != token or not all(0.0 <= score <= 1.0 for score in tree.scores):
                raise ValueError(f"{text.name}: a draft is no tree over its anchor")


def _trees(arrays: dict[str, np.ndarray], sources: Sequence[str]) -> Iterator[DraftTree]:
    counts = arrays["num_nodes"].tolist()
    tokens, parents, scores, names = (
        _split(arrays[f"node_{part}"].tolist(), counts) for part in ("token", "parent", "score", "source")
    )
    for own, above, chances, places in zip(tokens, parents, scores, names, strict=True):
        yield DraftTree(own, above, chances, [sources[place] for place in places])


def _split(values: Sequence[Any], counts: Sequence[int]) -> Iterator[Any]:
    """`values` in pieces of `counts`."""
    if min(counts, default=0) < 0 or sum(counts) != len(values):
        raise ValueError("its counts do not add up")
    for begin, end in pairwise(accumulate(counts, initial=0)):
        yield values[begin:end]
