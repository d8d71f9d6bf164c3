"""Recordings: what is written is read back, and what is damaged is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.errors import UsageError
from tandem.runtime.checks.recording import ARRAYS, Recording, Text, load_recording
from tandem.tree import DraftTree
from tests.runtime.router.replay import flat_table

BUSH = DraftTree([5, 6, 7, 8], [-1, 0, 1, 0], [1.0, 0.5, 0.25, 0.125], ["root", "local", "mtp", "local"])
LINE = DraftTree.chain(6, [7], [0.75], "local")


def recording() -> Recording:
    """Two texts, exact in fp32."""
    first = Text("chat 0", "chat", 3, [5, 6, 9], [[], [BUSH], [LINE, DraftTree.root(6)]], [0.0, 2.5, 0.0])
    second = Text("code 0", "code", 7, [1], [[]], [0.0])
    return Recording([first, second], flat_table(), recurrent=True, about={"model": "tiny"})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "texts.npz"
    recording().save(path)
    return path


def test_what_is_written_is_read_back(saved):
    assert load_recording(saved) == recording()
    assert load_recording(saved).texts[0].context(2) == 4


def test_a_folder_that_is_not_there_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        recording().save(tmp_path / "none" / "texts.npz")


def test_a_file_that_is_not_there_or_no_file(tmp_path):
    for path in (tmp_path / "none.npz", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            load_recording(path)


def test_any_cut_and_any_text_is_refused(saved, tmp_path):
    whole = saved.read_bytes()
    for content in (b"", b"not a recording", whole[:100], whole[: len(whole) // 2], whole[:-1], whole[7:]):
        damaged = tmp_path / "damaged.npz"
        damaged.write_bytes(content)
        with pytest.raises(UsageError, match="record it again"):
            load_recording(damaged)


def test_no_changed_byte_is_more_than_an_error(saved, tmp_path):
    whole = saved.read_bytes()
    damaged = tmp_path / "damaged.npz"
    for place in range(0, len(whole), 5):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            found = load_recording(damaged)
        except UsageError:
            continue
        assert found == recording()  # a byte that nobody reads


def changed(path: Path, header: dict[str, Any] | None = None, **arrays: Any) -> Path:
    with np.load(path) as file:
        held = {name: file[name] for name in file}
    facts = json.loads(held["header"].tobytes()) | (header or {})
    held |= {"header": np.frombuffer(json.dumps(facts).encode(), np.uint8)} | arrays
    held = {name: value for name, value in held.items() if value is not None}
    with path.open("wb") as file:
        np.savez(file, **held)
    return path


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"header": {"format": "tandem-recording-9"}}, "tandem-recording-9"),
        ({"header": {"sources": ["root"]}}, "list index out of range"),
        ({"header": {"texts": []}}, "do not add up"),
        ({"node_score": None}, "node_score"),
        ({"node_token": np.zeros(3, np.int32)}, "do not add up"),
        ({"node_token": np.zeros((7, 1), np.int32)}, "2 dimensions"),
        ({"node_score": np.ones(7, np.float64)}, "float64"),
        ({"node_score": np.full(7, np.nan, np.float32)}, "no tree over its anchor"),
        ({"node_parent": np.full(7, 5, np.int32)}, "no tree over its anchor"),
        ({"num_nodes": np.array([4, -1, 4], np.int32)}, "do not add up"),
        ({"num_trees": np.array([0, 1, 2], np.int32)}, "different lengths"),
        ({"draft_ms": np.array([0, -1, 0, 0], np.float32)}, "draft_ms"),
        ({"draft_ms": np.array([0, np.inf, 0, 0], np.float32)}, "draft_ms"),
        ({"tokens": np.array([5, 5, 9, 1], np.int32)}, "no tree over its anchor"),
        ({"tokens": np.array([object()] * 4)}, "allow_pickle"),
    ],
)
def test_what_is_wrong_is_named(saved, change, what):
    with pytest.raises(UsageError, match=what):
        load_recording(changed(saved, **change))


def test_prices_are_held_as_those_of_bundles(saved):
    wrong = {"1024": {"extend": {"1": -3.0}}}
    with pytest.raises(UsageError, match=r"'1024.extend.1' is -3.0, not a time"):
        load_recording(changed(saved, header={"prices": wrong}))


def test_every_array_is_asked_for(saved):
    for name in ARRAYS:
        recording().save(saved)
        with pytest.raises(UsageError, match=name):
            load_recording(changed(saved, **{name: None}))
