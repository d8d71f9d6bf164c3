"""A service without a model: token ids are bytes, and a worker plays scripted rounds in a thread of its own.

Ids 0..255 are the bytes of a byte-level vocabulary, IM_START and IM_END its special tokens.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tandem.errors import CapacityError, TandemError
from tandem.prices import PriceModel
from tandem.runtime.chat import ChatTemplate
from tandem.runtime.grammar.compiler import Grammars
from tandem.runtime.live import Occupancy
from tandem.runtime.logprobs import TokenLogprob
from tandem.runtime.meter import Meter, Stopwatch
from tandem.runtime.metrics import Family, Gauge
from tandem.runtime.request import FinishReason, LaneStats, MeasuringSink, Request, Sink, Ticket
from tandem.runtime.service import Service

if TYPE_CHECKING:
    from tandem.compile.checkpoints.base import Checkpoint

IM_START, IM_END = 256, 257
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTEXT_LENGTH = 200
PATIENCE = 20.0
"""Seconds after which a test that waits has failed."""


def byte_tokenizer() -> Tokenizer:
    """Every byte is its own token; the table of characters is spelled out here, apart from the code under test."""
    shown = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]  # 0xAD, a soft hyphen, is not printable
    hidden = [b for b in range(256) if b not in shown]
    vocab = {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>")])
    return tokenizer


@functools.cache
def real_checkpoint(gguf: Path) -> Checkpoint:
    """The real checkpoint, parsed once per session: that takes seconds."""
    from tandem.compile.checkpoints.open import open_checkpoint

    return open_checkpoint(str(gguf))


@dataclass
class ScriptedWorker:
    """Answers every request with `rounds`, which end as an engine's do. `requests` and `ends` keep what happened.

    With `endless` the last round is repeated, one a millisecond. `hold` waits before round `hold` until the request
    is cancelled or `release` is set. `error` ends a request after its rounds; `full` refuses all.
    """

    rounds: Sequence[Sequence[int]] = ()
    endless: bool = False
    hold: int | None = None
    error: TandemError | None = None
    full: bool = False
    stopped: bool = False
    healthy: bool = True
    requests: list[Request] = field(default_factory=list)
    ends: list[FinishReason] = field(default_factory=list)
    num_cancels: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    release: threading.Event = field(default_factory=threading.Event)
    meter: Meter = field(default_factory=Meter)
    prices: PriceModel = field(default_factory=PriceModel)

    def submit(self, request: Request, sink: Sink) -> Ticket:
        if self.full:
            raise CapacityError("64 requests are waiting already; try again later", retry_after_s=2.5)
        ticket = Ticket(request, Stopwatch(self.meter, request, sink))
        self.requests.append(request)
        threading.Thread(target=self._play, args=(ticket,), daemon=True).start()
        return ticket

    def submit_all(self, asked: Sequence[tuple[Request, Sink]]) -> list[Ticket]:
        return [self.submit(request, sink) for request, sink in asked]

    def cancel(self, ticket: Ticket) -> None:
        with self.changed:
            self.num_cancels += 1
            ticket.cancelled = True
            self.changed.notify_all()

    def occupancy(self) -> Occupancy:
        return Occupancy(len(self.requests) - len(self.ends), 4, 0, 64, 0, 100)

    def metrics(self) -> Iterable[Family]:
        yield Gauge("num_requests_running", "In flight.", lambda: len(self.requests) - len(self.ends))
        yield from self.meter.families()

    def drain(self, timeout: float | None = None) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.ends) == len(self.requests), timeout)

    def stop(self) -> None:
        self.stopped = True
        self.release.set()

    def wait_for_ends(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.ends) >= count, PATIENCE), "a request did not end"

    def _play(self, ticket: Ticket) -> None:
        stats = LaneStats(prompt_tokens=len(ticket.request.prompt))
        reason = self._deliver(ticket, stats)
        error = self.error if reason is FinishReason.LENGTH else None
        reason = FinishReason.ERROR if error else reason
        ticket.sink.finished(reason, stats, error)
        with self.changed:
            self.ends.append(reason)
            self.changed.notify_all()

    def _deliver(self, ticket: Ticket, stats: LaneStats) -> FinishReason:
        request = ticket.request
        if (count := request.prompt_logprobs) is not None:
            top = tuple((65 + i, -1.5 - i) for i in range(count))
            measured = [TokenLogprob(token, -token / 8, top, token + 1) for token in request.prompt[1:]]
            cast(MeasuringSink, ticket.sink).prompt_measured(measured)
        if not request.max_tokens:
            return FinishReason.LENGTH
        for number, block in self._blocks():
            if number == self.hold:
                self._wait(ticket)
            if ticket.cancelled or self.stopped:
                return FinishReason.CANCELLED
            block = block[: request.max_tokens - stats.completion_tokens]
            stop = next((i for i, token in enumerate(block) if token in request.stop_ids), None)
            block = block if stop is None else block[: stop + 1]
            stats.completion_tokens += len(block)
            stats.rounds += 1
            if request.logprobs is not None:
                top = tuple((65 + i, -1.5 - i) for i in range(request.logprobs))
                cast(MeasuringSink, ticket.sink).measured([TokenLogprob(token, -token / 8, top, 1) for token in block])
            if ticket.sink.tokens(list(block)) or stop is not None:
                return FinishReason.STOP
            if stats.completion_tokens == request.max_tokens:
                return FinishReason.LENGTH
        return FinishReason.LENGTH

    def _blocks(self) -> Iterator[tuple[int, Sequence[int]]]:
        yield from enumerate(self.rounds)
        number = len(self.rounds)
        while self.endless:
            time.sleep(1e-3)
            yield number, self.rounds[-1]
            number += 1

    def _wait(self, ticket: Ticket) -> None:
        for _ in range(int(PATIENCE / 0.01)):
            if ticket.cancelled or self.release.wait(0.01):
                return


def scripted_service(worker: Any, **changes: Any) -> Service:
    """A service named `tiny` over `worker`, with a context of 200 ids."""
    fields: dict[str, Any] = {
        "model": "tiny",
        "bundle_id": "0123456789abcdef" * 4,
        "created": 1_700_000_000,
        "tokenizer": byte_tokenizer(),
        "context_length": CONTEXT_LENGTH,
        "stop_ids": frozenset({IM_END}),
        "chat": ChatTemplate(TEMPLATE, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}),
        "worker": worker,
        "grammars": Grammars(byte_tokenizer(), IM_END + 1, {IM_END}),
    }
    return Service(**{**fields, "pace": 0.0, **changes})


@contextmanager
def on_loopback(app: Callable[..., Any], **options: Any) -> Iterator[str]:
    """The app behind a real uvicorn on a free port of 127.0.0.1; yields its address. `options` are uvicorn's."""
    import socket

    import uvicorn

    own = {"log_config": None, "lifespan": "off", "access_log": False, "timeout_graceful_shutdown": 1}
    config = uvicorn.Config(app, **{**own, **options})
    server = uvicorn.Server(config)
    # Named as TCP, as `serve.bind` has it: asyncio sends small pieces at once on such sockets alone.
    with socket.socket(proto=socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
