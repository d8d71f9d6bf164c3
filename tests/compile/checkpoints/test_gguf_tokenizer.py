"""Tokenizers rebuilt from GGUF headers: the ids of the tokenizer they were made from, on awkward texts."""

from __future__ import annotations

import inspect
import json
import shutil
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers.convert_slow_tokenizer import Qwen2Converter, TikTokenConverter

from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.checkpoints.gguf import GgufCheckpoint
from tandem.compile.checkpoints.gguf_tokenizer import _pre_tokenizer
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.errors import CheckpointError
from tests.tiny import make_checkpoint, make_gguf, tokenizer_json

TEXTS = (
    "",
    " ",
    "Hello 123",
    "a  1\n2\t\n 3",
    "x=12345;y=6.7e-8\r\n\r\n",
    "it's We'LL 'tis",
    "  def f():\n\treturn 1\n\n\n",
    "naïve café — ½ ² ٣٤ Ⅷ",
    "日本語テキスト 12",
    "👩‍👩‍👧 e\u0301 \u00e9 \u200b\u00a0x",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "<|im_start|> <|im_end",
    "\x00\x07 end ",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tokenizer"), "llama")


@pytest.fixture(scope="module")
def rebuilt(folder: Path) -> Tokenizer:
    return _rebuild(folder)


def _rebuild(folder: Path, **options: object) -> Tokenizer:
    checkpoint = GgufCheckpoint(make_gguf(folder / "model.gguf", folder, **options))  # type: ignore[arg-type]
    return Tokenizer.from_str(checkpoint.tokenizer_json)


def _with_tokenizer(folder: Path, tokenizer: Tokenizer, target: Path) -> Path:
    copy = Path(shutil.copytree(folder, target))
    (copy / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    return copy


@given(text=st.text(max_size=60))
@pytest.mark.parametrize("special", [True, False])
def test_ids_are_those_of_the_original(rebuilt: Tokenizer, special: bool, text: str) -> None:
    original = Tokenizer.from_str(tokenizer_json())
    for sample in (text, *TEXTS):
        ids = original.encode(sample, add_special_tokens=special).ids
        assert rebuilt.encode(sample, add_special_tokens=special).ids == ids
        assert rebuilt.decode(ids) == original.decode(ids)


def test_each_digit_stands_alone(rebuilt: Tokenizer) -> None:
    assert rebuilt.encode("Hello 123").tokens[-4:] == ["Ġ", "1", "2", "3"]


def test_special_tokens_and_facts_come_along(folder: Path, rebuilt: Tokenizer) -> None:
    checkpoint = GgufCheckpoint(make_gguf(folder / "model.gguf", folder))
    original = open_checkpoint(str(folder))
    for fact in ("chat_template", "bos_token", "eos_token", "stop_ids"):
        assert getattr(checkpoint, fact) == getattr(original, fact)
    assert {i: (token.content, token.special) for i, token in rebuilt.get_added_tokens_decoder().items()} == {
        0: ("<|endoftext|>", True),
        1: ("<|im_start|>", True),
        2: ("<|im_end|>", True),
    }


def test_user_defined_tokens_are_whole_but_not_special(folder: Path) -> None:
    """Token type 4: matched as a whole in text, and kept when special tokens are left out of the text."""
    original = Tokenizer.from_str(tokenizer_json())
    word = max((token for token in original.get_vocab() if token.isascii() and token.isalpha()), key=len)
    word_id = original.token_to_id(word)
    types = [3, 3, 3] + [4 if i == word_id else 1 for i in range(3, 333)]
    rebuilt = _rebuild(folder, fields={"tokenizer.ggml.token_type": types})
    original.add_tokens([AddedToken(word, special=False, normalized=False)])
    text = f"x{word}y <|im_end|>"
    assert rebuilt.encode(text).ids == original.encode(text).ids
    assert rebuilt.decode(rebuilt.encode(text).ids) == f"x{word}y "


def test_further_end_tokens_stop(folder: Path, tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "model.gguf", folder, fields={"tokenizer.ggml.eot_token_id": 40})
    assert GgufCheckpoint(path).stop_ids == (0, 2, 40)


# The patterns as Llama 3 and Qwen2 publish them in their tokenizer.json.
_BEFORE_DIGITS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_AFTER_DIGITS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PUBLISHED = {
    "llama-bpe": _BEFORE_DIGITS + r"\p{N}{1,3}" + _AFTER_DIGITS,
    "qwen2": _BEFORE_DIGITS + r"\p{N}" + _AFTER_DIGITS,
}


def test_the_patterns_are_the_ones_transformers_converts_with() -> None:
    assert PUBLISHED["llama-bpe"] in inspect.getsource(TikTokenConverter)
    assert PUBLISHED["qwen2"] in inspect.getsource(Qwen2Converter)


def _original(pre: str) -> Tokenizer:
    """The tiny vocabulary under another model's pre-tokenizer, put together as Transformers' converters do."""
    from tokenizers import Regex, decoders, normalizers

    tokenizer = Tokenizer.from_str(tokenizer_json())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre == "gpt-2")
    if pre in PUBLISHED:
        split = pre_tokenizers.Split(Regex(PUBLISHED[pre]), behavior="isolated", invert=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    else:
        tokenizer.pre_tokenizer = byte_level
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.fixture(scope="module", params=["gpt-2", "llama-bpe", "qwen2"])
def pair(request: pytest.FixtureRequest, folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer of another kind and what is rebuilt from a header made from it."""
    original = _original(request.param)
    copy = folder.parent / f"{folder.name}-{request.param}"
    _with_tokenizer(folder, original, copy)
    return original, _rebuild(copy, pre=request.param, fields={"tokenizer.ggml.add_bos_token": False})


@given(text=st.text(max_size=60))
def test_other_pre_tokenizers(pair: tuple[Tokenizer, Tokenizer], text: str) -> None:
    original, rebuilt = pair
    for sample in (text, *TEXTS):
        assert rebuilt.encode(sample).ids == original.encode(sample).ids


def test_pre_tokenizers_differ_where_they_should() -> None:
    def pieces(pre: str, text: str) -> list[str]:
        return [piece for piece, _ in _pre_tokenizer(pre).pre_tokenize_str(text)]

    assert pieces("gpt-2", "12345") == ["12345"]
    assert pieces("llama-bpe", "12345") == ["123", "45"]
    assert pieces("qwen2", "12345") == pieces("smollm", "12345") == ["1", "2", "3", "4", "5"]
    assert pieces("smollm", "a 1") == ["a", "Ġ", "1"]
    assert pieces("gpt-2", "a 1") == ["a", "Ġ1"]


@example("e\u0301")
@given(st.text(max_size=20))
def test_qwen2_composes_characters(text: str) -> None:
    tokenizer = _original("qwen2")
    assert tokenizer.encode(text).ids == tokenizer.encode(unicodedata.normalize("NFC", text)).ids


def test_bos_is_put_first_where_the_header_asks(folder: Path) -> None:
    asked = _rebuild(folder, fields={"tokenizer.ggml.add_bos_token": True})
    plain = Tokenizer.from_str(tokenizer_json()).encode("Hello").ids
    assert asked.encode("Hello").ids == [1, *plain]
    assert asked.encode("Hello", add_special_tokens=False).ids == plain
    assert _rebuild(folder, pre="llama-bpe").encode("Hello").ids[0] == 1  # llama-bpe files leave the field out
    assert _rebuild(folder).encode("Hello").ids == plain


def test_words_of_the_vocabulary_are_kept_whole_under_llama_bpe(folder: Path) -> None:
    """Llama 3 looks a word up before it merges: a token that no merge leads to is still found."""
    vocab = json.loads(tokenizer_json())["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    tokens[332] = "zqx"
    merges = [merge for merge in _merges() if "".join(merge.split(" ")) in tokens]
    fields = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges, "tokenizer.ggml.add_bos_token": False}
    assert _rebuild(folder, pre="llama-bpe", fields=fields).encode("zqx").tokens == ["zqx"]
    assert _rebuild(folder, pre="qwen2", fields=fields).encode("zqx").tokens == ["z", "q", "x"]


def _merges() -> list[str]:
    return [" ".join(pair) for pair in json.loads(tokenizer_json())["model"]["merges"]]


def test_unused_tokens_only_pad(folder: Path) -> None:
    types = [3, 3, 3] + [1] * 329 + [5]
    merges = _merges()[:-1]  # the last merge made the last token
    rebuilt = _rebuild(folder, fields={"tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": merges})
    assert rebuilt.id_to_token(332) is None and rebuilt.id_to_token(331) is not None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tokenizer.ggml.pre": "jais"}, "pre-tokenizer 'jais'"),
        ({"tokenizer.ggml.pre": "default"}, "pre-tokenizer 'default'"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer model 'llama'"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "333 tokens but 2 token types"),
        ({"tokenizer.ggml.tokens": ["a"] * 333}, "token 'a' has two ids"),
        ({"tokenizer.ggml.merges": ["h e llo"]}, "merge 'h e llo'"),
        ({"tokenizer.ggml.merges": ["hello"]}, "merge 'hello'"),
    ],
)
def test_refusals_are_by_name(folder: Path, tmp_path: Path, fields: dict[str, object], reason: str) -> None:
    path = make_gguf(tmp_path / "model.gguf", folder, fields=fields)
    with pytest.raises(CheckpointError) as caught:
        GgufCheckpoint(path)
    assert str(path) in str(caught.value) and reason in str(caught.value)


def test_a_header_without_pre_tokenizer(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="pre-tokenizer None"):
        GgufCheckpoint(make_gguf(tmp_path / "model.gguf", folder, drop=("tokenizer.ggml.pre",)))


@pytest.mark.smollm2
def test_the_real_smollm2(smollm2: Checkpoint) -> None:
    """Digits alone; texts come back; ids of the chat markers are the published ones."""
    tokenizer = Tokenizer.from_str(smollm2.tokenizer_json)
    assert tokenizer.get_vocab_size() == 49152
    assert tokenizer.encode("Hello 123").tokens == ["Hello", "Ġ", "1", "2", "3"]
    assert tokenizer.encode("<|im_start|><|im_end|><|endoftext|>").ids == [1, 2, 0]
    assert sum(token.special for token in tokenizer.get_added_tokens_decoder().values()) == 17
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        if not set(text) & {"\x00", "\x07"} and "<|" not in text:
            assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert isinstance(tokenizer.model, models.BPE)
