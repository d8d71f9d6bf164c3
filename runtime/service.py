"""What is served: a loaded bundle's tokenizer, template and worker under one name.

Knows nothing of HTTP or terminals; both stand on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tandem import __version__
from tandem.errors import RequestError
from tandem.prices import PriceModel
from tandem.runtime.chat import ChatTemplate
from tandem.runtime.delivery import PACE_SECONDS, Delivery, Event
from tandem.runtime.grammar.compiler import Grammars
from tandem.runtime.guide import GuideMaker
from tandem.runtime.live import Occupancy
from tandem.runtime.meter import Meter
from tandem.runtime.metrics import Family
from tandem.runtime.reading.formats import Format
from tandem.runtime.relaxed import Relaxation
from tandem.runtime.request import Penalties, Request, Sampling, Sink, Ticket
from tandem.runtime.text import TextRules, TextStream
from tandem.runtime.thinking.budget import Wish

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tandem.runtime.thinking.model import ThinkingModel


class Worker(Protocol):
    """The engine behind its thread, as `runtime.worker` has it; every method may be called from any thread."""

    healthy: bool

    def submit_all(self, asked: Sequence[tuple[Request, Sink]]) -> list[Ticket]: ...

    def cancel(self, ticket: Ticket) -> None: ...

    @property
    def meter(self) -> Meter: ...

    @property
    def prices(self) -> PriceModel: ...

    def occupancy(self) -> Occupancy: ...

    def metrics(self) -> Iterable[Family]: ...

    def drain(self, timeout: float | None = None) -> bool: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Service:
    """`context_length` is the most tokens of prompt and answer together; `stop_ids` end an answer.

    `created` is when it was loaded, in Unix seconds; `pace` are the least seconds between two events of an answer.
    `call_format` is how the model writes tool calls, `thinks` whether its answers may begin with a block of thoughts;
    `thinking`, how they are bounded, is None for a model whose template knows none.
    With a `relaxation` texts are not the model's.
    """

    model: str
    bundle_id: str
    created: int
    tokenizer: Tokenizer
    context_length: int
    stop_ids: frozenset[int]
    chat: ChatTemplate
    worker: Worker
    grammars: Grammars
    pace: float = PACE_SECONDS
    relaxation: Relaxation | None = None
    call_format: Format = Format.HERMES
    thinks: bool = False
    thinking: ThinkingModel | None = None

    @property
    def fingerprint(self) -> str:
        """Names the compiled bits: equal fingerprints give equal texts, unless they say that these are relaxed."""
        name = f"tandem-{__version__}-{self.bundle_id.removeprefix('sha256:')[:8]}"
        return name if self.relaxation is None else f"{name}-{self.relaxation}"

    def encode(self, text: str, *, add_special_tokens: bool, param: str = "prompt") -> tuple[int, ...]:
        """Token ids of `text`; special tokens are added to a bare text, never to a rendered chat.

        Errors name the field `param`.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError("the prompt is not valid UTF-8 text", param=param) from error
        # As a batch: only that lets other threads run meanwhile, and a long text takes seconds.
        try:
            return tuple(self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the tokenizers library is no Exception
            raise RequestError(f"the bundle's tokenizer fails at this prompt: {error}", param=param) from error

    def decode(self, ids: Sequence[int], *, param: str) -> str:
        """The text of `ids`, special tokens included. Errors name the field `param`."""
        try:
            return self.tokenizer.decode_batch([list(ids)], skip_special_tokens=False)[0]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # as above
            raise RequestError(f"the bundle's tokenizer fails at these ids: {error}", param=param) from error

    def request(
        self,
        prompt: tuple[int, ...],
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        penalties: Penalties | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        stop_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        guides: Sequence[GuideMaker] = (),
        framed: bool = False,
        thoughts: Wish | None = None,
        in_thoughts: bool | None = None,
        param: str = "prompt",
    ) -> Request:
        """A request for the engine; no `max_tokens` means the rest of the context, more than that is cut to it.

        `guides` are of its content, what follows its thoughts, unless they are `framed`: then they know of thoughts.
        `in_thoughts`: the answer begins inside a block of them; None leaves that to the end of `prompt`.
        Raises RequestError when `prompt` is empty or leaves no room for an answer.
        """
        if not prompt:
            raise RequestError("the prompt holds no token; give at least one", param=param)
        room = self.context_length - len(prompt)
        if room < 1:
            raise RequestError(
                f"the prompt is {len(prompt)} tokens long and the context holds {self.context_length}, one of them "
                "for the answer; shorten the prompt",
                param=param,
                code="context_length_exceeded",
            )
        length = room if max_tokens is None else min(max_tokens, room)
        if self.thinking:
            if in_thoughts is None:
                in_thoughts = self.thinking.reader.opened_by(prompt)
            content = () if framed else guides
            bounds = self.thinking.guides(thoughts or Wish(), length, content, in_thoughts=in_thoughts)
            guides = (*guides, *bounds) if framed else bounds
        return Request(
            prompt,
            length,
            sampling or Sampling(),
            frozenset(stop_ids) if ignore_eos else self.stop_ids.union(stop_ids),
            penalties=penalties or Penalties(),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            guides=tuple(guides),
            in_thoughts=bool(in_thoughts),
        )

    def submit(self, request: Request, stops: Sequence[str], emit: Callable[[Event], None]) -> Ticket:
        """Start an answer whose events go to `emit`, called in the engine's thread."""
        return self.submit_all([(request, emit)], TextRules(stops))[0]

    def submit_all(self, asked: Sequence[tuple[Request, Callable[[Event], None]]], rules: TextRules) -> list[Ticket]:
        """Start several answers, or none where there is no room for all; each request with its own `emit`."""
        return self.worker.submit_all([(request, self._delivery(request, rules, emit)) for request, emit in asked])

    def _delivery(self, request: Request, rules: TextRules, emit: Callable[[Event], None]) -> Delivery:
        text = TextStream(
            self.tokenizer,
            rules.stops,
            request.stop_ids,
            request.penalties.min_tokens,
            keep_stop=rules.keep_stop,
            skip_special_tokens=rules.skip_special_tokens,
            shown=rules.shown,
            until=None if rules.until is None else rules.until(),
        )
        thoughts = self.thinking.count(in_thoughts=request.in_thoughts) if self.thinking else None
        return Delivery(text, emit, self.pace, thoughts)

    def added(self, texts: Sequence[str], *, special: bool = False) -> frozenset[str]:
        """Those of `texts` that are tokens added to the vocabulary, special ones or any."""
        tokens = self.tokenizer.get_added_tokens_decoder().values()
        return frozenset(token.content for token in tokens if token.content in texts and special <= token.special)
