"""CPU time of the HTTP layer for each streamed token: everything between an engine's tokens and the socket, no engine.

A process serves a bundle's tokenizer and template while a script of tokens comes at an engine's pace, one a lane and
round; clients in another process read. What is counted is all CPU time of the serving process, less that of the same
rounds with nobody to give tokens to. Prints a table.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

from figure import Figure, Line
from machine import describe
from server import Server
from spread import Goal, Spread

ROOT = Path(__file__).resolve().parent.parent
TEXT = Path(argparse.__file__)
"""What the tokens say: a module of Python's own library."""


class Pace:
    """A worker that gives every request the next tokens of a text, one a round of `seconds`, and knows no engine."""

    healthy = True

    def __init__(self, ids: list[int], seconds: float) -> None:
        self._ids, self._seconds, self._lock = ids, seconds, Lock()
        self._live: list[Any] = []
        Thread(target=self._play, daemon=True).start()

    def submit_all(self, asked: Iterable[tuple[Any, Any]]) -> list[Any]:
        from tandem.runtime.request import LaneStats, Ticket

        tickets = [Ticket(request, sink) for request, sink in asked]
        with self._lock:
            self._live += [(ticket, LaneStats(len(ticket.request.prompt))) for ticket in tickets]
        return tickets

    def cancel(self, ticket: Any) -> None:
        ticket.cancelled = True

    def metrics(self) -> Iterable[Any]:
        return ()

    def drain(self, timeout: float | None = None) -> bool:
        return True

    def stop(self) -> None:
        pass

    def _play(self) -> None:
        from tandem.runtime.request import FinishReason

        due = time.perf_counter()
        while True:
            due += self._seconds
            time.sleep(max(0.0, due - time.perf_counter()))
            with self._lock:
                live = list(self._live)
            for ticket, stats in live:
                ticket.sink.tokens([self._ids[stats.completion_tokens % len(self._ids)]])
                stats.completion_tokens += 1
                if ticket.cancelled or stats.completion_tokens >= ticket.request.max_tokens:
                    ticket.sink.finished(FinishReason.LENGTH, stats, None)
                    self._live.remove((ticket, stats))


def host(bundle: Path, seconds: float, pipe: Any) -> None:
    """The serving process: says its port, then its CPU time whenever it is asked."""
    from tandem.artifacts.reader import open_bundle
    from tandem.runtime.chat import ChatTemplate
    from tandem.runtime.grammar.compiler import Grammars
    from tandem.runtime.loading import read_tokenizer
    from tandem.runtime.serve import bind, serve
    from tandem.runtime.service import Service

    opened = open_bundle(bundle)
    tokenizer = read_tokenizer(opened.tokenizer_path)
    ids = tokenizer.encode(TEXT.read_text(), add_special_tokens=False).ids
    service = Service(
        model="script",
        bundle_id=opened.manifest.content_id,
        created=0,
        tokenizer=tokenizer,
        context_length=2**20,
        stop_ids=frozenset(),
        chat=ChatTemplate(opened.manifest.tokenizer.chat_template, {}),
        worker=Pace(ids, seconds),
        grammars=Grammars(tokenizer, tokenizer.get_vocab_size(), ()),
    )
    bound = bind("127.0.0.1", 0)
    bound.listen()  # who connects before the server is up waits in the backlog
    pipe.send(bound.getsockname()[1])
    Thread(target=_tell, args=(pipe,), daemon=True).start()
    with redirect_stdout(sys.stderr):
        serve(service, bound)


def _tell(pipe: Any) -> None:
    with suppress(EOFError):
        while pipe.recv():
            pipe.send(time.process_time())


def measure(options: argparse.Namespace) -> Figure:
    """Microseconds a token, and the share of them that rounds cost with nobody there."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=host, args=(options.bundle, options.round_ms / 1e3, theirs), daemon=True
    )
    process.start()
    server = Server(f"http://127.0.0.1:{ours.recv()}", process.pid or 0)

    def spent(work: Any) -> float:
        ours.send(True)
        before = ours.recv()
        work()
        ours.send(True)
        return ours.recv() - before

    seconds, costs, idles = options.tokens * options.round_ms / 1e3, list[float](), list[float]()
    for turn in range(options.repeats + 1):
        idle = spent(lambda: time.sleep(seconds))
        busy = spent(lambda: play(server, options.lanes, options.tokens))
        if turn:
            idles.append(1e6 * idle / (options.lanes * options.tokens))
            costs.append(1e6 * (busy - idle) / (options.lanes * options.tokens))
    process.terminate()
    goal = Goal(100, 50)
    return Figure(
        "http",
        f"CPU time a streamed token, {options.lanes} lanes, a round each {options.round_ms:g} ms",
        [Line("HTTP layer", Spread.of(costs), "us", goal), Line("idle rounds", Spread.of(idles), "us")],
    )


def play(server: Server, lanes: int, tokens: int) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens}
    for stream in [server.stream("/v1/chat/completions", body) for _ in range(lanes)]:
        assert stream.wait().num_tokens == tokens


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--bundle", type=Path, default=ROOT / ".demo" / "smollm2-bf16", help="its tokenizer and template are used")
    add("--lanes", type=int, default=8)
    add("--tokens", type=int, default=400, help="of each answer")
    add("--round-ms", type=float, default=12.0)
    add("--repeats", type=int, default=3)
    figure = measure(parser.parse_args())
    print(f"{describe()}\n\n{figure.text()}")
    return int(any(line.missed for line in figure.lines))


if __name__ == "__main__":
    sys.exit(main())
