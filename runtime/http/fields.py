"""Every field that OpenAI's and vLLM's clients know, and what becomes of it. `docs/api.md` prints this table.

A field is honoured (it stands in `schema`), accepted for its neutral values and refused otherwise, or without
effect on the text and accepted. Nothing that asks for something is dropped silently.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from tandem.errors import RequestError

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "verbosity": ("medium",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "chat_template": (),
    "documents": ([],),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
}
"""Field -> values that ask for nothing, null besides; any other value is refused."""

WITHOUT_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "priority",
        "request_id",
        "cache_prompt",
        "guided_decoding_backend",
    }
)
"""Fields that name or file a request and change no token; any value is accepted."""

MAX_LOGGED = 100
_logger = logging.getLogger(__name__)
_logged: set[str] = set()


def check_fields(body: Mapping[str, Any], honoured: Collection[str]) -> None:
    """Raise RequestError for a known field that asks for what cannot be had; log unknown ones once."""
    for name, value in body.items():
        if name in honoured or name in WITHOUT_EFFECT:
            continue
        if name in NEUTRAL:
            if value is not None and not any(_same(value, neutral) for neutral in NEUTRAL[name]):
                raise RequestError(_refusal(name), param=name, code="unsupported_value")
        elif name not in _logged and len(_logged) < MAX_LOGGED:
            _logged.add(name)
            _logger.warning("unknown request field %.64r is ignored", name)


def _same(value: Any, neutral: Any) -> bool:
    """Equal in JSON's sense: 0 is 0.0 but not false."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _refusal(name: str) -> str:
    accepted = ", ".join(msgspec.json.encode(value).decode() for value in (None, *NEUTRAL[name]))
    return f"{name} is not supported; leave it out (accepted: {accepted})"
