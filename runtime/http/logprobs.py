"""Logprobs as each endpoint words them: chat's list of tokens, the four parallel lists of completions.

Knows nothing of engines; what a token reads as comes from the service.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from tandem.runtime.logprobs import TokenLogprob

TokenBytes = Callable[[int], bytes]


class ChatTop(Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(ChatTop):
    top_logprobs: list[ChatTop]


class ChatLogprobs(Struct):
    content: list[ChatToken]
    refusal: None = None


class TextLogprobs(Struct):
    """`text_offset` counts characters from the answer's first on."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Wording:
    """Logprobs of one answer, piece by piece; `begun` characters of it are told already."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._bytes = token_bytes
        self._begun = 0

    def chat(self, tokens: Sequence[TokenLogprob]) -> ChatLogprobs:
        return ChatLogprobs(
            [
                ChatToken(
                    *self._one(token.id, token.logprob), top_logprobs=[ChatTop(*self._one(*t)) for t in token.top]
                )
                for token in tokens
            ]
        )

    def text(self, tokens: Sequence[TokenLogprob]) -> TextLogprobs:
        words = [self._word(token.id) for token in tokens]
        offsets = []
        for word in words:
            offsets.append(self._begun)
            self._begun += len(word)
        # The token itself is always among its alternatives, as OpenAI has it.
        tops = [
            {**{self._word(i): logprob for i, logprob in token.top}, word: token.logprob}
            for word, token in zip(words, tokens, strict=True)
        ]
        return TextLogprobs(words, [token.logprob for token in tokens], tops, offsets)

    def _word(self, token: int) -> str:
        return self._bytes(token).decode(errors="replace")

    def _one(self, token: int, logprob: float) -> tuple[str, float, list[int]]:
        return self._word(token), logprob, [*self._bytes(token)]
