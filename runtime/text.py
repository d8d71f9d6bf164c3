"""From token ids to text as it grows: whole characters only, stop strings held back, nothing after a stop.

Knows nothing of engines or HTTP. What is given out depends on the ids alone, never on how they were grouped.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_HELD_TOKENS = 4
"""A character has at most four bytes, so a tail that four tokens did not complete never will be."""


class Decoder(Protocol):
    """Text added by one more id, in time that does not grow with the text; an unfinished character waits inside."""

    def add(self, token_id: int) -> str: ...


@dataclass(frozen=True, slots=True)
class TextRules:
    """How an answer's ids are read. `stops` end the text, which holds them, and stop ids, if they are to be kept.

    Special tokens in `shown`, by their texts, are not skipped. `until` makes what each text is told to as it is given
    out, token by token; the answer ends with the token after which that says so.
    """

    stops: Sequence[str] = ()
    keep_stop: bool = False
    skip_special_tokens: bool = True
    shown: Collection[str] = ()
    until: Callable[[], Callable[[str], bool]] | None = None


class TextStream:
    """The text of one answer. `stops` end it before their first character, `stop_ids` before their token; with
    `keep_stop` they end it behind themselves. Special tokens have no text unless they are not skipped.

    A stop that is complete within the first `min_tokens` ids ends nothing. `num_tokens` counts the ids consumed, up to
    the one that completed a stop. `shown` and `until` are as in `TextRules`, but that `until` belongs to this text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        stop_ids: Set[int] = frozenset(),
        min_tokens: int = 0,
        *,
        keep_stop: bool = False,
        skip_special_tokens: bool = True,
        shown: Collection[str] = (),
        until: Callable[[str], bool] | None = None,
    ) -> None:
        self.num_tokens = 0
        self._min_tokens = min_tokens
        self.stopped = False
        self._keep_stop = keep_stop
        self._until = until
        self._decoder = _decoder(tokenizer, _special_ids(tokenizer, shown) if skip_special_tokens else frozenset())
        self._stops = [_StopString(stop) for stop in stops]
        self._stop_ids = stop_ids
        self._held = ""

    @property
    def has_stops(self) -> bool:
        """Whether the text, and not an id alone, may end the answer."""
        return bool(self._stops) or self._until is not None

    def push(self, ids: Sequence[int]) -> tuple[str, bool]:
        """Text that `ids` make certain, and whether the answer has ended; ids after the end are not consumed."""
        pieces = []
        for token_id in ids:
            if self.stopped:
                break
            self.num_tokens += 1
            ends = token_id in self._stop_ids
            if (self._keep_stop or not ends) and (text := self._decoder.add(token_id)):
                pieces.append(self._release(text))
                if self._until is not None and self._until(pieces[-1]) and self.num_tokens > self._min_tokens:
                    self.stopped, self._held = True, ""
            self.stopped = self.stopped or ends
        return "".join(pieces), self.stopped

    def flush(self) -> str:
        """Text still held back, once no more ids come. Bytes of an unfinished character are dropped."""
        held, self._held = self._held, ""
        return held

    def _release(self, text: str) -> str:
        """What `text` and the held text give out: all but a tail that may begin a stop, or what precedes a stop."""
        if not self._stops:
            return text
        start = len(self._held)
        text = self._held + text
        for place in range(start, len(text)):
            matches = [stop.length for stop in self._stops if stop.advance(text[place])]
            if matches and self.num_tokens > self._min_tokens:
                self.stopped = True
                self._held = ""
                return text[: place + 1 - (0 if self._keep_stop else max(matches))]
        # Where stops are kept, the beginning of one is text like any other.
        certain = len(text) - (0 if self._keep_stop else max(stop.matched for stop in self._stops))
        self._held = text[certain:]
        return text[:certain]


class _StopString:
    """Knuth-Morris-Pratt over one stop: `matched` is how much of it the text so far ends with."""

    def __init__(self, text: str) -> None:
        self.length = len(text)
        self.matched = 0
        self._text = text
        self._borders = [0] * len(text)
        border = 0
        for i in range(1, len(text)):
            while border and text[i] != text[border]:
                border = self._borders[border - 1]
            border += text[i] == text[border]
            self._borders[i] = border

    def advance(self, character: str) -> bool:
        """Takes one more character of the text; true when the stop is complete, which it may be again."""
        if self.matched == self.length:
            self.matched = self._borders[-1]
        while self.matched and character != self._text[self.matched]:
            self.matched = self._borders[self.matched - 1]
        self.matched += character == self._text[self.matched]
        return self.matched == self.length


def _decoder(tokenizer: Tokenizer, skip: Set[int]) -> Decoder:
    return (ByteDecoder if _is_byte_level(tokenizer) else WindowDecoder)(tokenizer, skip)


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    from tokenizers import decoders

    return isinstance(tokenizer.decoder, decoders.ByteLevel)


def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary: GPT-2's table, by rule.

    Printable Latin-1 bytes stand for themselves, the others for 256, 257, ... in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}


_BYTE_OF = byte_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""A byte in vocabularies that fall back to bytes for what has no token."""


class ByteDecoder:
    """Byte-level vocabularies: tokens are bytes, and UTF-8 says which characters are whole. Ids in `skip` are none."""

    def __init__(self, tokenizer: Tokenizer, skip: Set[int]) -> None:
        self._token_of = tokenizer.id_to_token
        self._special, self._skip = _special_ids(tokenizer), skip
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token_id: int) -> str:
        token = None if token_id in self._skip else self._token_of(token_id)
        if token is None:
            return ""
        return self._utf8.decode(token.encode() if token_id in self._special else _written(token))


def _written(token: str) -> bytes:
    """The bytes of a byte-level vocabulary's token."""
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:  # an added token is written as it reads
        return token.encode()


class TokenBytes:
    """What a token alone stands for, special ones included; nothing for an id that the vocabulary lacks."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._special = tokenizer, _special_ids(tokenizer)
        self._is_bytes = _is_byte_level(tokenizer)

    def __call__(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self._special:
            return token.encode()
        return _written(token) if self._is_bytes else self._tokenizer.decode([token_id]).encode()


class WindowDecoder:
    """Any other vocabulary: the tokenizer decodes the last given-out tokens with and without the new ones.

    The window gives the context that decoders need at a word's start, and stays a few tokens long. Ids in `skip` are no
    text.
    """

    def __init__(self, tokenizer: Tokenizer, skip: Set[int]) -> None:
        self._decode, self._token_of = partial(tokenizer.decode, skip_special_tokens=False), tokenizer.id_to_token
        self._skip = skip
        self._context: list[int] = []
        self._pending: list[int] = []

    def add(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        self._pending.append(token_id)
        before = self._decode(self._context)
        text = self._decode(self._context + self._pending)
        if text.endswith("\ufffd") and len(self._pending) < MAX_HELD_TOKENS and not self._is_whole():
            return ""
        if len(text) <= len(before):  # nothing visible yet: keep it as context of what follows
            self._context += self._pending
            self._context, self._pending = self._context[-2 * MAX_HELD_TOKENS :], []
            return ""
        self._context, self._pending = self._pending, []
        return text[len(before) :]

    def _is_whole(self) -> bool:
        """Whether what is pending are bytes of whole characters: U+FFFD itself may be one."""
        found = [_BYTE_TOKEN.fullmatch(self._token_of(token_id) or "") for token_id in self._pending]
        try:
            return bool(bytes(int(match.group(1), 16) for match in found if match).decode()) and all(found)
        except UnicodeDecodeError:
            return False


def _special_ids(tokenizer: Tokenizer, shown: Collection[str] = ()) -> frozenset[int]:
    """Ids of the special tokens whose texts are not in `shown`."""
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(i for i, token in added.items() if token.special and token.content not in shown)
