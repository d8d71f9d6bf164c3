"""Answers on a terminal: one prompt, or a chat until the input ends. Ctrl-C stops an answer.

What the model says goes to stdout, figures and errors to stderr.

Knows nothing of HTTP.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import monotonic

import click

from tandem.errors import TandemError
from tandem.runtime.delivery import End, Event
from tandem.runtime.figures import rates, summary
from tandem.runtime.grammar import specification
from tandem.runtime.live import Totals
from tandem.runtime.request import FinishReason, LaneStats, Request, Sampling
from tandem.runtime.service import Service
from tandem.runtime.status_line import StatusLine, status_line

FIGURES_SECONDS = 0.25
"""Least time between two lines of figures while an answer is made."""

HELP = """\
/help   this list
/stats  figures of all answers of this chat
/reset  forget what was said
Ctrl-C stops an answer, Ctrl-D ends the chat."""


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
    show = None if as_json else _print
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
    """Talk until `read` raises EOFError (Ctrl-D). A stopped or failed answer leaves the talk going on.

    A line that is one of HELP's words and nothing else is not for the model.
    """
    read = read or _ask
    messages: list[dict[str, str]] = []
    answers: list[LaneStats] = []
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
        match line.strip():
            case "":
                continue
            case "/help":
                click.echo(HELP, err=True)
                continue
            case "/reset":
                messages.clear()
                continue
            case "/stats":
                click.echo(f"answers: {len(answers)} {summary(*answers)}", err=True)
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
        answers.append(end.stats)
        messages.append({"role": "assistant", "content": text})


def _chat_ids(service: Service, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
    return service.encode(service.chat.render(messages), add_special_tokens=False)


def _request(service: Service, ids: tuple[int, ...], wishes: Wishes) -> Request:
    guides = []
    if wishes.schema is not None:
        guides = [service.grammars.compile(specification.json_schema(wishes.schema), "--json-schema")]
    return service.request(ids, max_tokens=wishes.max_tokens, sampling=wishes.sampling, guides=guides)


def _run(
    service: Service, request: Request, stops: Sequence[str], show: Callable[[str], None] | None
) -> tuple[str, End]:
    """The whole text, shown piece by piece unless `show` is None. Ctrl-C cancels, and what came is the answer."""
    inbox: queue.Queue[Event] = queue.Queue()
    meter, pieces = service.worker.meter, list[str]()
    began = Totals.of(meter)
    ticket = service.submit(request, stops, inbox.put)
    # A handler and not KeyboardInterrupt, which could strike between an event and its use.
    before = signal.signal(signal.SIGINT, lambda *_: service.worker.cancel(ticket))
    try:
        with contextlib.nullcontext() if show is None else status_line() as line:
            for event in _events(inbox, line, lambda: rates(began, Totals.of(meter))):
                pieces.append(event.text)
                if show is not None:
                    show(event.text)
    finally:
        signal.signal(signal.SIGINT, before)
    assert isinstance(event, End), "the last one"
    if event.reason is FinishReason.ERROR:
        raise event.error or TandemError("the engine gave up on this request")
    return "".join(pieces), event


def _events(inbox: queue.Queue[Event], line: StatusLine | None, figures: Callable[[], str]) -> Iterator[Event]:
    """All events of an answer. `line`, if there is one, shows figures each FIGURES_SECONDS, whether any come or not."""
    if line is None:
        while not isinstance(event := inbox.get(), End):
            yield event
    else:
        due = 0.0  # at once, for the row is best made free while the cursor stands at the start of one
        while True:
            if (now := monotonic()) >= due:
                line.show(figures())
                due = now + FIGURES_SECONDS
            with contextlib.suppress(queue.Empty):
                if isinstance(event := inbox.get(timeout=max(0.0, due - monotonic())), End):
                    break
                yield event
    yield event


def _ask() -> str:
    # Being imported, it gives input() its arrow keys and history; not every Python has it.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    return input("> ")


def _print(text: str) -> None:
    click.echo(text, nl=False)
