"""Tokenizer facts of a Hugging Face folder: tokenizer.json, chat template, bos and eos, the ids a text stops at.

Knows nothing of weights. The text of a tokenizer is passed on unchanged, never rebuilt here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.compile.checkpoints.base import TokenizerFacts
from tandem.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Ends of a turn or of the text in the published chat formats. They stop a text wherever they are special tokens, for
# many configs name only one of a pair: SmolLM2's names <|im_end|> and leaves out <|endoftext|>.
END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
    "<eos>",
)


def read_facts(folder: Path, config: dict[str, Any], origin: str) -> TokenizerFacts:
    """Facts from a folder's tokenizer.json, tokenizer_config.json, generation_config.json, chat_template.jinja."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"{origin}: tokenizer.json is missing: save one with "
            "transformers.AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)"
        )
    tokenizer_json = _read_text(path)
    tokenizer = load_tokenizer(tokenizer_json, str(path))
    settings = read_json(folder / "special_tokens_map.json") | read_json(folder / "tokenizer_config.json")
    generation = read_json(folder / "generation_config.json")
    eos_token = token_text(settings.get("eos_token"))
    named = [*token_ids(generation.get("eos_token_id")), *token_ids(config.get("eos_token_id"))]
    return TokenizerFacts(
        tokenizer_json=tokenizer_json,
        chat_template=_chat_template(folder, settings),
        bos_token=token_text(settings.get("bos_token")),
        eos_token=eos_token,
        stop_ids=stop_ids(tokenizer, named, eos_token),
    )


def load_tokenizer(tokenizer_json: str, where: str) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # tokenizers raises plain Exception
        raise CheckpointError(f"{where}: not a tokenizer that tokenizers can read ({error}): fetch it again") from error


def stop_ids(tokenizer: Tokenizer, named: Iterable[int], eos_token: str | None) -> tuple[int, ...]:
    """Ids that end a text: those the configs name, the eos token's, and END_TOKENS that are special tokens."""
    found = set(named)
    if eos_token is not None and (eos_id := tokenizer.token_to_id(eos_token)) is not None:
        found.add(eos_id)
    for token_id, token in tokenizer.get_added_tokens_decoder().items():
        if token.special and token.content in END_TOKENS:
            found.add(token_id)
    return tuple(sorted(found))


def token_ids(value: Any) -> list[int]:
    """An `eos_token_id` field as a list: configs write an int, a list of ints or null."""
    return [item for item in (value if isinstance(value, list) else [value]) if type(item) is int]


def token_text(value: Any) -> str | None:
    """A token as tokenizer_config.json writes it: a string, an AddedToken's fields, or null."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}): fetch it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: wanted a JSON object, found {type(content).__name__}: fetch it again")
    return content


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read as UTF-8 text ({error}): fetch it again") from error


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """The file wins over the field, as in Transformers; of several named templates, the one called default."""
    if (path := folder / "chat_template.jinja").is_file():
        return _read_text(path)
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
