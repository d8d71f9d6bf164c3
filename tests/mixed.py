"""What tests of passes stand on that prompts share with lanes that decode: an executor that keeps rows, an engine.

Knows nothing of what is tested.
"""

from __future__ import annotations

from tandem.keys import Kind
from tandem.runtime.engine import Engine
from tandem.runtime.executor.base import Outcome, Rows
from tandem.runtime.request import Request
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import Recorder, ScriptedExecutor


class Logged(ScriptedExecutor):
    """Keeps the rows of every pass of the target."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.log: list[Rows] = []

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        self.log.append(rows)
        return super().run(kind, rows)


def plain(executor: ScriptedExecutor, **options: object) -> Engine:
    options = {"router": EvenRouter(), "prices": FreePrices(), "drafters": None, **options}
    return Engine(executor, **options)  # type: ignore[arg-type]


def begun(engine: Engine, *requests: Request) -> list[Recorder]:
    """The sinks of requests that all decode."""
    sinks = [Recorder() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        engine.submit(request, sink)
    while not all(sink.ids for sink in sinks):
        engine.step()
    return sinks
