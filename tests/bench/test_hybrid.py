"""The hybrid beside Transformers: losses that agree and one that must not, rates by turn, text that was held out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answer import CommandError
from figures import eager, loss
from sides.process import Run, Side, SideError
from sides.roster import Roster
from tandem.artifacts.reader import open_bundle
from tandem.compile.train import packages
from tandem.compile.train.documents import Collector
from tandem.runtime.checks.lab import token_ids
from tandem.runtime.loading import read_tokenizer
from tests.bundles import compiled
from tests.tiny import VOCAB_SIZE, make_checkpoint
from unseen import domains, python_files, windows

TEXTS = {"one": [token_ids(41, VOCAB_SIZE, 1), token_ids(41, VOCAB_SIZE, 2)], "two": [token_ids(41, VOCAB_SIZE, 3)]}


@pytest.fixture(scope="module")
def bundle() -> Path:
    return compiled("qwen3_5", "fp32")


@pytest.fixture(scope="module")
def checkpoint(bundle: Path) -> Path:
    return bundle.parent / "checkpoint"


def test_losses_are_those_of_transformers(bundle: Path, checkpoint: Path) -> None:
    figure = loss.measure(bundle, checkpoint, TEXTS, threads=1)
    by_name = {line.name: line for line in figure.lines}
    assert by_name["one, tandem fp32"].note == "80 tokens"
    assert by_name["all, tandem fp32"].spread.median == pytest.approx(
        (2 * by_name["one, tandem fp32"].spread.median + by_name["two, tandem fp32"].spread.median) / 3
    )
    assert 4 < by_name["all, Transformers fp32"].spread.median < 9  # random weights: about log 333
    assert by_name["window that is furthest apart"].spread.median < 1e-5
    assert not any(line.missed for line in figure.lines)


def test_other_weights_are_told_apart(bundle: Path, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "other", "qwen3_5", seed=1)
    assert sum(line.missed for line in loss.measure(bundle, other, TEXTS, threads=1).lines) == 3


def test_what_transformers_says_last_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(SideError, match=r"^Transformers: .*nothing"):
        loss.theirs(tmp_path / "nothing", TEXTS["one"], threads=1)


def test_both_sides_go_on_with_the_same_ids(bundle: Path, checkpoint: Path) -> None:
    prompt = token_ids(30, VOCAB_SIZE, 8)
    with Side("Transformers", Path(sys.executable), eager.MODULE, checkpoint, "1", "float32") as theirs:
        wanted = theirs.run(prompt, 12).ids
    with Roster({"fp32": bundle}, Path(), 1).ours("fp32") as ours:
        assert ours.run(prompt, 12).ids == wanted


def test_a_turn_is_all_its_prompts_together() -> None:
    class Played:
        # Two turns of two prompts, four tokens behind the first each: 8 in 1 s, then 8 in 4 s.
        runs = tuple(Run([0] * 5, 1.0, ms, 4, 0.0) for ms in (400.0, 600.0, 1000.0, 3000.0))

    assert eager.by_turn(Played(), 2).runs == (8.0, 2.0)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.integers(1, 12), st.integers(1, 5))
def test_windows_are_pieces_that_do_not_overlap(ids: list[int], length: int, count: int) -> None:
    numbered = list(range(len(ids)))
    found = windows(numbered, length, count)
    flat = [place for window in found for place in window]
    assert sorted(set(flat)) == flat
    assert len(found) == min(count, max(1, len(ids) // length))
    assert {len(window) for window in found} == {min(length, len(ids))}
    assert all(window == list(range(window[0], window[0] + len(window))) for window in found)


def test_no_corpus_trains_on_the_files_that_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        f"part/module_{i}.py": f"number_{i} = {i}\n" + f"print('a line of module number {i}')\n" * 9 for i in range(400)
    }
    library = packages.Package(
        "python-library", "3", "PSF-2.0", lambda: iter((path, text.encode()) for path, text in files.items())
    )
    monkeypatch.setattr(packages, "standard_library", lambda: library)
    documents = list(Collector(10**6).collect([library]))
    held_out = {document.text for document in documents if document.held_out}
    assert held_out == set(python_files())
    assert 0 < len(held_out) < len(documents) / 10


def test_a_corpus_of_another_tokenizer_is_refused(bundle: Path, tmp_path: Path) -> None:
    from tandem.compile.train.corpus import build_corpus

    text = "\n".join(f"def function_number_{i}(first):\n    return first * {i}\n" for i in range(40))
    folder = packages.Package("python-library", "3", "PSF-2.0", lambda: iter([("one.py", text.encode())]))
    options = {"vocab_size": 300, "package_bytes": 10**6, "tokenizer_bytes": 10**6}
    build_corpus([folder], tmp_path / "corpus", say=lambda line: None, **options)  # type: ignore[arg-type]
    tokenizer = read_tokenizer(open_bundle(bundle).tokenizer_path)
    with pytest.raises(CommandError, match="another tokenizer"):
        domains(tokenizer, tmp_path / "corpus")
    assert list(domains(tokenizer, None)) == ["stdlib"]
