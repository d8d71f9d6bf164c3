"""The spelling of a tokenizer in a bundle: other bytes, the same tokenizer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from tandem.compile.tokenizer import quick_text
from tandem.errors import CheckpointError
from tests.tiny import tokenizer_json


def _merges(text: str) -> list[Any]:
    return json.loads(text)["model"]["merges"]


def _spm() -> Tokenizer:
    """As Llama 2 has it: spaces become a character of their own, unknown bytes are tokens."""
    vocab = {"<unk>": 0, "<0x41>": 1, "▁": 2, "a": 3, "▁a": 4, "b": 5, "ab": 6}
    tokenizer = Tokenizer(models.BPE(vocab, [("▁", "a"), ("a", "b")], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _spaced() -> Tokenizer:
    """Merges of parts that hold a space, which one string could not tell apart."""
    vocab = {"a": 0, " ": 1, " a": 2, "a ": 3, " a a": 4, "a a": 5}
    return Tokenizer(models.BPE(vocab, [(" ", "a"), ("a", " "), (" a", " a")]))


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.1), ("ab", -2.718281828459045e-10)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


@pytest.mark.parametrize("text", [tokenizer_json(), *(make().to_str() for make in (_spm, _spaced, _unigram))])
@pytest.mark.parametrize("indent", [None, 2])
def test_the_tokenizer_stays_the_same(text: str, indent: int | None) -> None:
    given = json.dumps(json.loads(text), indent=indent)
    quick = quick_text(given, "a tokenizer")
    assert Tokenizer.from_str(quick).to_str() == Tokenizer.from_str(given).to_str()
    assert len(quick) <= len(given)


def test_merges_are_strings_where_a_space_can_only_part_them() -> None:
    pairs = _merges(tokenizer_json())
    assert pairs and _merges(quick_text(tokenizer_json(), "it")) == [f"{left} {right}" for left, right in pairs]
    assert _merges(quick_text(_spaced().to_str(), "it")) == [[" ", "a"], ["a", " "], [" a", " a"]]
    once = quick_text(tokenizer_json(), "it")
    assert quick_text(once, "it") == once


def test_what_is_no_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="mine: not a tokenizer"):
        quick_text("{}", "mine")
