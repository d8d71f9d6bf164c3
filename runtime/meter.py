"""What an engine counts: requests, tokens, times, drafts. Names are vLLM's, so that dashboards carry over.

Written by the engine's thread alone. Knows nothing of HTTP, text or how numbers are printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from time import perf_counter
from typing import cast

from tandem.errors import TandemError
from tandem.keys import DRAFTER_KINDS, MAX_TREE_ROWS, Kind
from tandem.runtime.logprobs import TokenLogprob
from tandem.runtime.metrics import Counter, Family, Histogram, LabelledCounter
from tandem.runtime.request import FinishReason, LaneStats, MeasuringSink, Request, Sink
from tandem.runtime.thinking.guide import REASONS as CLOSED
from tandem.tree import DraftTree

REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560)
TOKEN_SECONDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)
TOKENS = tuple(step * 10**power for power in range(6) for step in (1, 2, 5))
MAX_SOURCES = 16

REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TIMEOUT: "timeout",
    FinishReason.CANCELLED: "abort",
    FinishReason.ERROR: "error",
}
"""vLLM's words for how a request ended."""
ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)

ROUNDS = {Kind.EXTEND: "plain", Kind.VERIFY_CHAIN: "chain", Kind.VERIFY_TREE: "tree"}


class Plain(StrEnum):
    """Why a round drafted nothing."""

    OFF = "off"
    """No lane of it has a drafter."""

    NO_GUESS = "no_guess"
    """No drafter had a guess that there is room for."""

    RESTS = "rests"
    """Looking for copies has lately taken more time on the texts at hand than copies brought."""

    PRICE = "price"
    """At the bundle's prices no draft promised more tokens a millisecond than the plain step."""

    MEASURED = "measured"
    """Drafted rounds have cost more wall time a token than plain ones, and the gain promised is no larger."""

    MIXED = "mixed"
    """It shared a pass with prompts, in which every lane has its own token and no more."""


class Lost(StrEnum):
    """Why a request goes without the model drafter."""

    TURN = "turn"
    """What it saves of the answer would not pay for reading the prompt."""

    BEHIND = "behind"
    """The ring of taps was full of rows it had not read, and reading them would not have paid."""

    CONTEXT = "context"
    """Its text is too long for the drafter, whose own context is shorter or holds no further block."""

    SHARED = "shared"
    """It is a choice whose prompt another one brought in that went without, so there are no taps of it."""

    FAILED = "failed"
    """A pass of it failed, or gave what is no guess."""


class Meter:
    """The instruments of one engine. Its attributes are they and nothing else, in the order in which they are shown."""

    def __init__(self) -> None:
        self.prompt_tokens = Counter("prompt_tokens_total", "Prompt tokens of requests with a first token.")
        self.prefix_queries = Counter("prefix_cache_queries_total", "Prompt tokens of requests that were given a lane.")
        self.prefix_hits = Counter(
            "prefix_cache_hits_total", "Of these, tokens that another choice of the same request had brought in."
        )
        self.generation_tokens = Counter("generation_tokens_total", "Tokens committed to answers.")
        self.ended = LabelledCounter(
            "request_success_total", "Ended requests by how they ended.", "finished_reason", REASONS.values()
        )
        self.thoughts_closed = LabelledCounter(
            "thinking_closed_total", "Blocks of thoughts closed for the model, by why.", "reason", CLOSED
        )
        self._time_requests()
        self._count_speculation()

    def _time_requests(self) -> None:
        self.first_token = Histogram(
            "time_to_first_token_seconds", "From a request's arrival at the engine to its first token.", REQUEST_SECONDS
        )
        self.between = Histogram(
            "inter_token_latency_seconds",
            "Between rounds that brought a request tokens; a round may bring several.",
            TOKEN_SECONDS,
        )
        self.per_token = Histogram(
            "request_time_per_output_token_seconds",
            "Mean time of an answered request's tokens after the first.",
            TOKEN_SECONDS,
        )
        self.whole = Histogram(
            "e2e_request_latency_seconds", "From arrival to the end of an answered request.", REQUEST_SECONDS
        )
        self.queued = Histogram("request_queue_time_seconds", "From arrival to admission.", REQUEST_SECONDS)
        self.request_prompt = Histogram("request_prompt_tokens", "Prompt tokens of an answered request.", TOKENS)
        self.request_generation = Histogram(
            "request_generation_tokens", "Committed tokens of an answered request.", TOKENS
        )

    def _count_speculation(self) -> None:
        def by_source(what: str, text: str) -> LabelledCounter:
            name = f"spec_decode_num_{what}_tokens_per_source_total"
            return LabelledCounter(name, text, "source", (), most=MAX_SOURCES)

        depths = map(str, range(MAX_TREE_ROWS - 1))
        self.drafts = Counter("spec_decode_num_drafts_total", "Drafts verified, one a lane and round.")
        self.drafted = Counter("spec_decode_num_draft_tokens_total", "Drafted tokens verified.")
        self.accepted = Counter("spec_decode_num_accepted_tokens_total", "Drafted tokens accepted.")
        self.accepted_at = LabelledCounter(
            "spec_decode_num_accepted_tokens_per_pos_total",
            "Drafted tokens accepted, by how many accepted ones stand before them in the round.",
            "position",
            depths,
        )
        self.relaxed = Counter(
            "spec_decode_num_relaxed_tokens_total", "Drafted tokens accepted that are not the model's own."
        )
        self.drafted_by = by_source("draft", "Drafted tokens verified, by drafter.")
        self.accepted_by = by_source("accepted", "Drafted tokens accepted, by drafter.")
        verifies = (Kind.VERIFY_CHAIN, Kind.VERIFY_TREE)
        self.priced = LabelledCounter(
            "spec_decode_price_seconds_total", "What verifies were priced at, by kind.", "kind", verifies
        )
        self.took = LabelledCounter("spec_decode_verify_seconds_total", "Time of verifies, by kind.", "kind", verifies)
        kinds, lost = DRAFTER_KINDS, "Requests that went without the model drafter, by why."
        self.lost = LabelledCounter("spec_decode_num_lost_drafters_total", lost, "reason", Lost)
        self.draft_passes = LabelledCounter("spec_decode_passes_total", "Passes of the model drafter.", "kind", kinds)
        self.draft_rows = LabelledCounter("spec_decode_rows_total", "Rows of these passes.", "kind", kinds)
        self.draft_seconds = LabelledCounter("spec_decode_seconds_total", "Time of these passes.", "kind", kinds)
        self.rounds = LabelledCounter("rounds_total", "Rounds of decoding lanes, by kind.", "kind", ROUNDS.values())
        self.plain_rounds = LabelledCounter("plain_rounds_total", "Plain rounds, by why they were.", "reason", Plain)

    def families(self) -> Iterable[Family]:
        return vars(self).values()

    def verified(self, tree: DraftTree, path: Sequence[int]) -> None:
        """A verified draft and the nodes accepted of it, the anchor first."""
        self.drafts.add()
        self.drafted.add(tree.num_drafted)
        for source in set(tree.sources[1:]):
            self.drafted_by.add(source, tree.sources.count(source))
        self.accepted.add(len(path) - 1)
        for depth, node in enumerate(path[1:]):
            self.accepted_at.add(str(depth))
            self.accepted_by.add(tree.sources[node])


class Stopwatch:
    """A sink that tells `meter` of one request what it passes on. It starts when it is made."""

    def __init__(self, meter: Meter, request: Request, sink: Sink) -> None:
        self._meter, self._sink = meter, sink
        self._num_prompt, self._num_tokens = len(request.prompt), 0
        self._asked = self._first = self._last = perf_counter()

    def measured(self, logprobs: Sequence[TokenLogprob]) -> None:
        """For requests that ask for logprobs, whose sink takes them."""
        cast(MeasuringSink, self._sink).measured(logprobs)

    def prompt_measured(self, logprobs: Sequence[TokenLogprob]) -> None:
        """The same of the prompt's."""
        cast(MeasuringSink, self._sink).prompt_measured(logprobs)

    def tokens(self, ids: list[int]) -> bool:
        now, meter = perf_counter(), self._meter
        if self._num_tokens:
            meter.between.observe(now - self._last)
        else:
            meter.prompt_tokens.add(self._num_prompt)
            meter.first_token.observe(now - self._asked)
            self._first = now
        self._last = now
        self._num_tokens += len(ids)
        meter.generation_tokens.add(len(ids))
        return self._sink.tokens(ids)

    def finished(self, reason: FinishReason, stats: LaneStats, error: TandemError | None) -> None:
        # Counted first: whoever has the answer finds it counted.
        self._meter.ended.add(REASONS[reason])
        if reason in ANSWERED:
            self._meter.whole.observe(perf_counter() - self._asked)
            self._meter.request_prompt.observe(self._num_prompt)
            self._meter.request_generation.observe(self._num_tokens)
            if self._num_tokens > 1:
                self._meter.per_token.observe((self._last - self._first) / (self._num_tokens - 1))
        self._sink.finished(reason, stats, error)
