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
    """`text_offset` counts characters of the tokens' texts from the first on. A prompt's first token has no logprob."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptToken(Struct):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]
"""vLLM's form: by id, the token itself and the likeliest in its place; null for the first."""


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

    def text(self, tokens: Sequence[TokenLogprob], first: int | None = None) -> TextLogprobs:
        """`first` is the first token of an echoed prompt, which `tokens` follow."""
        unmeasured = [] if first is None else [first]
        words = [self._word(i) for i in (*unmeasured, *(token.id for token in tokens))]
        offsets = []
        for word in words:
            offsets.append(self._begun)
            self._begun += len(word)
        none = [None for _ in unmeasured]
        logprobs, tops = [token.logprob for token in tokens], [self._tops(token) for token in tokens]
        return TextLogprobs(words, none + logprobs, none + tops, offsets)

    def prompt(self, tokens: Sequence[TokenLogprob]) -> PromptLogprobs:
        """Of a whole prompt, of which `tokens` are all but the first."""
        return [None, *map(self._ranked, tokens)]

    def _ranked(self, token: TokenLogprob) -> dict[str, PromptToken]:
        found = {token.id: (token.logprob, token.rank)}
        found |= {i: (logprob, place) for place, (i, logprob) in enumerate(token.top, 1)}
        return {str(i): PromptToken(logprob, rank, self._word(i)) for i, (logprob, rank) in found.items()}

    def _tops(self, token: TokenLogprob) -> dict[str, float]:
        """The token itself is always among its alternatives, as OpenAI has it; of several that read the same, the
        likeliest counts.
        """
        tops: dict[str, float] = {}
        for i, logprob in (*token.top, (token.id, token.logprob)):
            tops.setdefault(self._word(i), logprob)
        return tops

    def _word(self, token: int) -> str:
        return self._bytes(token).decode(errors="replace")

    def _one(self, token: int, logprob: float) -> tuple[str, float, list[int]]:
        return self._word(token), logprob, [*self._bytes(token)]
