"""The tokenizer in a GGUF header, rebuilt as the tokenizer.json it was made from: byte-level BPE only.

The header names its pre-tokenizer but does not hold it, so the known ones are written out here; an unknown name is
refused, for a wrong split gives slightly wrong ids and no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tandem.compile.checkpoints.base import TokenizerFacts
from tandem.compile.checkpoints.gguf_config import GgufHeader
from tandem.compile.checkpoints.tokenizer import stop_ids
from tandem.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # tokenizer.ggml.token_type
# The published split patterns of Llama 3 and Qwen2: they differ only in how many digits go together.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = ("llama-bpe", "llama-v3", "llama3")
_PRE_TOKENIZERS = ("smollm", "gpt-2", "qwen2", *_LLAMA3)
_END_FIELDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_facts(header: GgufHeader) -> TokenizerFacts:
    """The tokenizer, chat template and stop ids of a GGUF header."""
    tokens: list[str] = _items(header, "tokens", str)
    tokenizer = _tokenizer(header, tokens)
    bos_id = _token_id(header, "bos_token_id", len(tokens))
    ends = [_token_id(header, name, len(tokens)) for name in _END_FIELDS]
    eos_token = None if ends[0] is None else tokens[ends[0]]
    template = header.fields.get("tokenizer.chat_template")
    return TokenizerFacts(
        tokenizer_json=tokenizer.to_str(),
        chat_template=template if isinstance(template, str) else None,
        bos_token=None if bos_id is None else tokens[bos_id],
        eos_token=eos_token,
        stop_ids=stop_ids(tokenizer, [end for end in ends if end is not None], eos_token),
    )


def _tokenizer(header: GgufHeader, tokens: list[str]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    model = header.fields.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise CheckpointError(
            f"{header.origin}: tokenizer model {model!r}, wanted 'gpt2' (byte-level BPE): "
            "use the original safetensors with its tokenizer.json"
        )
    pre = header.fields.get("tokenizer.ggml.pre")
    if pre not in _PRE_TOKENIZERS:
        raise CheckpointError(
            f"{header.origin}: pre-tokenizer {pre!r}, wanted one of {', '.join(_PRE_TOKENIZERS)}: "
            "use the original safetensors with its tokenizer.json"
        )
    types: list[int] = _items(header, "token_type", int)
    merges: list[str] = _items(header, "merges", str)
    vocab = _vocab(header, tokens, types)
    pairs = [_pair(header, merge, vocab) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre in _LLAMA3))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    added = [  # they are in the vocabulary already and keep their ids
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    _add_bos(header, tokenizer, tokens, default=pre in _LLAMA3)
    return tokenizer


def _vocab(header: GgufHeader, tokens: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    """Ids by token, without the unused ones that only pad the embedding."""
    if len(types) != len(tokens):
        raise CheckpointError(f"{header.origin}: {len(tokens)} tokens but {len(types)} token types: fetch it again")
    used = [(token, token_id) for token_id, token in enumerate(tokens) if types[token_id] != _UNUSED]
    vocab = dict(used)
    if len(vocab) != len(used):
        twice = next(token for token, token_id in used if vocab[token] != token_id)
        raise CheckpointError(f"{header.origin}: token {twice!r} has two ids: use the original tokenizer.json")
    return vocab


def _pair(header: GgufHeader, merge: str, vocab: dict[str, int]) -> tuple[str, str]:
    """A merge is two tokens and a space; bytes are written as letters, so no token holds a space of its own."""
    left, _, right = merge.partition(" ")
    if left not in vocab or right not in vocab or left + right not in vocab:
        raise CheckpointError(f"{header.origin}: merge {merge!r} is not of tokens in the vocabulary: fetch it again")
    return left, right


def _pre_tokenizer(pre: str) -> PreTokenizer:
    from tokenizers import Regex, pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel
    if pre == "gpt-2":
        return byte_level(add_prefix_space=False)
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, byte_level(add_prefix_space=False)])
    pattern = _SPLIT.replace("DIGITS", "{1,3}" if pre in _LLAMA3 else "")
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, byte_level(add_prefix_space=False, use_regex=False)])


def _add_bos(header: GgufHeader, tokenizer: Tokenizer, tokens: Sequence[str], *, default: bool) -> None:
    """Where the header asks for it, encoding with special tokens puts the bos token first."""
    from tokenizers import processors

    bos_id = _token_id(header, "bos_token_id", len(tokens))
    if not header.fields.get("tokenizer.ggml.add_bos_token", default) or bos_id is None:
        return
    bos = tokens[bos_id]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, bos_id)]
    )


def _items(header: GgufHeader, name: str, kind: type) -> list[Any]:
    items = header.fields.get(f"tokenizer.ggml.{name}")
    if not isinstance(items, list) or not all(isinstance(item, kind) for item in items):
        state = "is missing" if items is None else f"is no list of {kind.__name__}"
        raise CheckpointError(f"{header.origin}: header field tokenizer.ggml.{name} {state}: fetch the file again")
    return items


def _token_id(header: GgufHeader, name: str, num_tokens: int) -> int | None:
    """The id in a header field such as `eos_token_id`; None if the field is absent."""
    token_id = header.fields.get(f"tokenizer.ggml.{name}")
    if token_id is not None and (not isinstance(token_id, int) or not 0 <= token_id < num_tokens):
        raise CheckpointError(
            f"{header.origin}: header field tokenizer.ggml.{name} is {token_id!r}, wanted an id below {num_tokens}: "
            "fetch the file again"
        )
    return token_id
