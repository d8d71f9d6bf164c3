"""The command's choice of figures, and the bytes of weights that a step reads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import bundles
from cpu import NAMES, chosen


def test_a_name_or_its_first_part_chooses_figures() -> None:
    assert chosen(["decode-int8", "start"], quick=False) == ["decode-int8", "start"]
    assert chosen(["copy"], quick=True) == ["copy-bf16", "copy-int8", "copy-int4"]
    assert chosen(None, quick=False) == NAMES
    assert set(NAMES) - set(chosen(None, quick=True)) == {"compile"}
    # Asked for by name, it is measured all the same.
    assert chosen(["compile"], quick=True) == ["compile"]


def test_an_unknown_figure_is_refused_by_name() -> None:
    with pytest.raises(SystemExit, match="there is no figure speed"):
        chosen(["speed"], quick=False)


@pytest.mark.parametrize(("head", "wanted"), [(False, 1000 + 10 + 300), (True, 800 + 10 + 300)])
def test_a_step_reads_no_table_that_it_takes_a_row_of(head: bool, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"embedding": 1000, "final_norm": 10, "layers.0.qkv": 300, "rope.cos": 5000, "pad.0": 7}
    sizes |= {"head": 800} if head else {}
    spans = {name: SimpleNamespace(nbytes=nbytes) for name, nbytes in sizes.items()}
    opened = SimpleNamespace(weights=SimpleNamespace(spans=spans))
    monkeypatch.setattr("tandem.artifacts.reader.open_bundle", lambda _: opened)
    assert bundles.step_bytes(Path("any")) == wanted
