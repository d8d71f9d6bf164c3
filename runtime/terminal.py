"""Answers on a terminal: one prompt, or a chat until the input ends. Ctrl-C stops an answer.

Knows nothing of HTTP.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import click

from tandem.errors import TandemError
from tandem.runtime.delivery import End, Event
from tandem.runtime.grammar import specification
from tandem.runtime.request import FinishReason, LaneStats, Request, Sampling
from tandem.runtime.service import Service


@dataclass(frozen=True, slots=True)
class Wishes:
    """How answers on a terminal are to be made. No `max_tokens` means the rest of the context."""

    max_tokens: int | None = None
    sampling: Sampling = Sampling()  # noqa: RUF009
    stops: tuple[str, ...] = ()
    schema: str | None = None
    """The text of a JSON schema that answers keep to."""


def answer_once(service: Service, prompt: str, wishes: Wishes, *, raw: bool, as_json: bool) -> None:
    """Print the answer to `prompt` on stdout and its rates on stderr; as JSON one object on stdout instead.

    The chat template wraps the prompt unless `raw` is set or the bundle has none.
    """
    if raw or service.chat.source is None:
        ids = service.encode(prompt, add_special_tokens=True)
    else:
        ids = _chat_ids(service, [{"role": "user", "content": prompt}])
    show: Callable[[str], None] = (lambda text: None) if as_json else _print
    text, end = _run(service, _request(service, ids, wishes), wishes.stops, show)
    if as_json:
        fields = {"text": text, "ids": list(end.ids), "finish_reason": end.reason.value, "stats": asdict(end.stats)}
        click.echo(json.dumps(fields, ensure_ascii=False))
    else:
        click.echo()
        click.echo(summary(end.stats), err=True)
    if end.reason is FinishReason.CANCELLED:
        raise KeyboardInterrupt


def chat(service: Service, wishes: Wishes, read: Callable[[], str] | None = None) -> None:
    """Talk until `read` raises EOFError (Ctrl-D). A stopped or failed answer leaves the talk going on."""
    read = read or _ask
    messages: list[dict[str, str]] = []
    while True:
        try:
            line = read()
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo()
            continue
        except UnicodeDecodeError as error:
            click.echo(f"error: the line is not {error.encoding} text", err=True)
            continue
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line})
        try:
            request = _request(service, _chat_ids(service, messages), wishes)
            text, end = _run(service, request, wishes.stops, _print)
        except TandemError as error:
            messages.pop()
            click.echo(f"error: {error}", err=True)
            continue
        click.echo()
        click.echo(summary(end.stats), err=True)
        messages.append({"role": "assistant", "content": text})


def summary(stats: LaneStats) -> str:
    """One line of rates. The first token comes out of the prefill, so it counts in no round."""
    rounds_tokens = max(stats.completion_tokens - 1, 0)
    rate = 1e3 * rounds_tokens / stats.decode_ms if stats.decode_ms else 0.0
    each = rounds_tokens / stats.rounds if stats.rounds else 0.0
    return (
        f"[{stats.prompt_tokens} + {stats.completion_tokens} tokens, prefill {stats.prefill_ms:.0f} ms, "
        f"{rate:.1f} tokens/s, {each:.2f} tokens a round, {stats.accepted} of {stats.drafted} drafts accepted]"
    )


def _chat_ids(service: Service, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
    return service.encode(service.chat.render(messages), add_special_tokens=False)


def _request(service: Service, ids: tuple[int, ...], wishes: Wishes) -> Request:
    guides = []
    if wishes.schema is not None:
        guides = [service.grammars.compile(specification.json_schema(wishes.schema), "--json-schema")]
    return service.request(ids, max_tokens=wishes.max_tokens, sampling=wishes.sampling, guides=guides)


def _run(service: Service, request: Request, stops: Sequence[str], show: Callable[[str], None]) -> tuple[str, End]:
    """The whole text, shown piece by piece. Ctrl-C cancels, and what came until then is the answer."""
    events: queue.Queue[Event] = queue.Queue()
    ticket = service.submit(request, stops, events.put)
    pieces = []
    # A handler and not KeyboardInterrupt, which could strike between an event and its use.
    before = signal.signal(signal.SIGINT, lambda *_: service.worker.cancel(ticket))
    try:
        while True:
            event = events.get()
            pieces.append(event.text)
            show(event.text)
            if isinstance(event, End):
                break
    finally:
        signal.signal(signal.SIGINT, before)
    if event.reason is FinishReason.ERROR:
        raise event.error or TandemError("the engine gave up on this request")
    return "".join(pieces), event


def _ask() -> str:
    # Being imported, it gives input() its arrow keys and history; not every Python has it.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    return input("> ")


def _print(text: str) -> None:
    click.echo(text, nl=False)
