"""What a body asks for, all its choices together: the engine's requests, and who words their answers.

Knows nothing of bodies, and of engines only what a request is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from msgspec import UNSET

from tandem.runtime.delivery import End, Event
from tandem.runtime.http.replies import CompletionDetails, Form, Usage
from tandem.runtime.http.writers import WriterMaker
from tandem.runtime.request import Request
from tandem.runtime.seeds import choice_seed
from tandem.runtime.text import TextRules

Tally = tuple[int, int | None]
"""Tokens of an answer so far, and those of them that are reasoning, if that is known."""


def tally(event: Event) -> Tally:
    """The counts with `event`."""
    return len(event.ids) if isinstance(event, End) else event.num_tokens, event.num_reasoning


@dataclass(frozen=True, slots=True)
class Order:
    """`requests` stand prompt by prompt, `num_candidates` of each, of which the `num_given` best are answered with.

    `rules` say how each is read.
    """

    requests: Sequence[Request]
    rules: TextRules
    num_given: int
    num_candidates: int
    form: Form
    writer: WriterMaker

    @property
    def num_choices(self) -> int:
        return len(self.requests) // self.num_candidates * self.num_given

    def given(self, ends: Sequence[End]) -> list[End]:
        """The answers given, by index of their choice, of those to `requests`."""
        size = self.num_candidates
        groups = [ends[first : first + size] for first in range(0, len(ends), size)]
        return [end for group in groups for end in self._best(group)]

    def _best(self, candidates: Sequence[End]) -> Sequence[End]:
        """The likeliest first, by mean logprob of a token; where all are given, as they are."""
        if self.num_given == len(candidates):
            return candidates
        return sorted(candidates, key=_mean_logprob, reverse=True)[: self.num_given]

    def usage(self, tallies: Iterable[Tally]) -> Usage:
        """Each prompt counts once, each answer counts that was made."""
        asked = sum(len(request.prompt) for request in self.requests[:: self.num_candidates])
        counts, reasoning = zip(*tallies, strict=True)
        thoughts = [count for count in reasoning if count is not None]
        made, details = sum(counts), CompletionDetails(sum(thoughts)) if thoughts else UNSET
        return Usage(asked, made, asked + made, completion_tokens_details=details)


def candidates(request: Request, count: int) -> list[Request]:
    """`request` as often as it is to be answered, each time with noise of its own."""
    sampling = request.sampling
    seeds = [choice_seed(sampling.seed, number) for number in range(count)]
    return [replace(request, sampling=replace(sampling, seed=seed)) for seed in seeds]


def _mean_logprob(end: End) -> float:
    return sum(token.logprob for token in end.logprobs) / max(len(end.logprobs), 1)
