"""The suffix store: what is kept and found again, what kills and full disks do to it, and that no text changes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from tandem.artifacts.suffix_folder import LOG, StoreFolder
from tandem.artifacts.suffix_log import sealed
from tandem.runtime.drafters import store as module
from tandem.runtime.drafters.store import SuffixStore
from tests.children import environment
from tests.runtime.drafters.stores import PATIENCE_S, TOKENIZER, VOCAB, documents, until


@contextmanager
def opened(path: Path, *, readonly: bool = False, max_bytes: int = 1 << 20, fresh: int = 1) -> Iterator[SuffixStore]:
    folder = StoreFolder(path, TOKENIZER, VOCAB, readonly=readonly)
    store = SuffixStore(folder, VOCAB, max_bytes=max_bytes, fresh_tokens=fresh)
    yield store
    store.close()


def found(store: SuffixStore, ids: list[int]) -> int:
    """In how many places of what is sorted `ids` stand."""
    if store.table is None:
        return 0
    low, high = store.table.find(ids)
    return high - low


def test_texts_are_found_once_they_are_sorted_and_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.record(array("i", [1, 2, 3, 4]))
        until(lambda: found(store, [2, 3, 4]) == 1)
        store.record(array("i", [9, 2, 3, 4]))
        until(lambda: found(store, [2, 3, 4]) == 2)
    assert sorted(os.listdir(tmp_path / "s")) == ["meta.json", LOG]  # the sorted suffixes have no name
    with opened(tmp_path / "s") as store:
        until(lambda: found(store, [2, 3, 4]) == 2)
    assert documents(tmp_path / "s") == [[1, 2, 3, 4], [9, 2, 3, 4]]


def test_few_new_tokens_wait_for_more(tmp_path: Path) -> None:
    with opened(tmp_path / "s", fresh=12) as store:
        store.record(array("i", [1, 2, 3, 4]))
        store.record(array("i", [5, 6, 7]))
        until(lambda: len(documents(tmp_path / "s")) == 2)
        assert store.table is None
        store.record(array("i", [8, 9, 10, 11]))
        until(lambda: found(store, [2, 3, 4]) == 1)


def test_a_chat_is_kept_once(tmp_path: Path) -> None:
    chat = list(np.random.default_rng(0).integers(0, VOCAB, 60).tolist())
    with opened(tmp_path / "s") as store:
        for turn in (20, 40, 60):
            store.record(array("i", chat[:turn]))
        store.record(array("i", chat[:40]))
    assert documents(tmp_path / "s") == [chat[:20], chat[12:40], chat[32:60]]


def test_a_store_over_its_cap_loses_its_older_half(tmp_path: Path) -> None:
    with opened(tmp_path / "s", max_bytes=400) as store:
        for i in range(60):
            store.record(array("i", [i % VOCAB, i // VOCAB, 1, 2, 3]))
        until(lambda: not store._queue.qsize())
        last = [59 % VOCAB, 59 // VOCAB, 1]
        until(lambda: found(store, last) == 1)
    kept = documents(tmp_path / "s")
    assert 400 / 2 / 24 - 2 <= len(kept) <= 400 / 24 + 1
    assert kept == [[i % VOCAB, i // VOCAB, 1, 2, 3] for i in range(60 - len(kept), 60)]


@pytest.mark.parametrize(
    ("spoil", "left"),
    [
        (lambda data: data[:-1], [[1, 2, 3, 4]]),
        (lambda data: data[:-4], [[1, 2, 3, 4]]),
        (lambda data: data + b"\1\0\0\0\2", [[1, 2, 3, 4], [5, 6, 7, 8]]),
        (lambda data: b"\7" + data[1:], [[5, 6, 7, 8]]),
        (lambda data: b"\xff" * len(data), []),
        (lambda data: bytes(len(data)), []),
        (lambda data: b"", []),
    ],
)
def test_what_is_damaged_is_dropped_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[bytes], bytes], left: list[list[int]]
) -> None:
    with opened(tmp_path / "s") as store:
        store.record(array("i", [1, 2, 3, 4]))
        store.record(array("i", [5, 6, 7, 8]))
    log = tmp_path / "s" / LOG
    spoilt = spoil(log.read_bytes())
    log.write_bytes(spoilt)
    with opened(tmp_path / "s", readonly=True) as store:
        pass
    assert log.read_bytes() == spoilt  # a reader mends nothing
    with opened(tmp_path / "s") as store:
        store.record(array("i", [9, 9, 9]))
        until(lambda: found(store, [9, 9, 9]) == 1)
        assert [found(store, [1, 2, 3]), found(store, [5, 6, 7])] == [
            [i, i + 1] in [d[:2] for d in left] for i in (1, 5)
        ]
    assert documents(tmp_path / "s") == [*left, [9, 9, 9]]
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == bool(spoilt) and all(
        "whole document" in line and str(tmp_path / "s") in line for line in warned
    )


def test_a_reader_keeps_nothing_and_trusts_whole_documents_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.record(array("i", [1, 2, 3, 4]))
    with open(tmp_path / "s" / LOG, "ab") as file:
        file.write(sealed([5, 6, 7])[:-1])
    with opened(tmp_path / "s", readonly=True) as store:
        until(lambda: found(store, [1, 2, 3]) == 1)
        store.record(array("i", [9, 9, 9]))
        assert found(store, [5, 6]) == 0
    with opened(tmp_path / "s") as store:
        pass
    assert documents(tmp_path / "s") == [[1, 2, 3, 4]]


def test_a_full_disk_costs_new_tokens_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    append, full = StoreFolder.append, [True]

    def refuse(folder: StoreFolder, data: bytes) -> None:
        if full:
            raise OSError(28, "No space left on device")
        append(folder, data)

    with opened(tmp_path / "s") as store:
        store.record(array("i", [1, 2, 3]))
        until(lambda: found(store, [1, 2, 3]) == 1)
        monkeypatch.setattr(StoreFolder, "append", refuse)
        for ids in ([4, 5, 6], [4, 5, 6, 7]):
            store.record(array("i", ids))
        until(lambda: caplog.records and not store._queue.qsize())
        full.clear()
        store.record(array("i", [4, 5, 6, 7, 8]))  # what was lost is no known beginning
        until(lambda: found(store, [4, 5, 6, 7, 8]) == 1)
    assert documents(tmp_path / "s") == [[1, 2, 3], [4, 5, 6, 7, 8]]
    (record,) = caplog.records
    assert "No space left" in record.getMessage() and str(tmp_path / "s") in record.getMessage()


def test_the_engine_never_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "QUEUE", 2)
    held = Event()
    monkeypatch.setattr(StoreFolder, "append", lambda folder, data: held.wait(PATIENCE_S))
    with opened(tmp_path / "s") as store:
        for i in range(20):
            store.record(array("i", [i, i]))
        assert "the disk is too slow" in caplog.text and len(caplog.records) == 1
        held.set()


KEEP = """
import sys
from array import array
from pathlib import Path
from tandem.artifacts.suffix_folder import StoreFolder
from tandem.runtime.drafters.store import SuffixStore
store = SuffixStore(StoreFolder(Path(sys.argv[1]), "ab" * 32, 23), 23, max_bytes=6000, fresh_tokens=300)
print("open", flush=True)
i = int(sys.argv[2])
while True:
    store.record(array("i", [i % 23, i // 23 % 23, i // 529 % 23] * 7))
    i += 1
"""


def test_killed_at_any_moment_it_is_sound_when_it_opens_again(tmp_path: Path) -> None:
    for turn in range(4):
        words = [sys.executable, "-c", KEEP, str(tmp_path / "s"), str(turn * 1000)]
        child = subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None and child.stdout.readline() == "open\n"
        time.sleep(0.05 + 0.03 * turn)
        child.kill()
        child.wait()
        child.stdout.close()
        with opened(tmp_path / "s"):
            pass
        kept = documents(tmp_path / "s")
        assert all(len(document) == 21 and document == document[:3] * 7 for document in kept)
    assert kept and sorted(os.listdir(tmp_path / "s")) == ["meta.json", LOG]
