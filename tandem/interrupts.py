"""Signals held back for a moment, so that none strikes between the start of a child and the note of who it is.

Knows nothing of what signals are for.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

HELD = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_back() -> Iterator[None]:
    """Handlers of Ctrl-C and SIGTERM that would run within the block run at its end.

    Those of Python alone: what is ignored, or ends the process at once, does so here too. Children inherit neither
    handlers nor a mask. Elsewhere than in the main thread no handler ever runs, and this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    come: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        come.append(number)

    before = {number: signal.getsignal(number) for number in HELD}
    handlers = {number: handler for number, handler in before.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for struck in come:
            signal.raise_signal(struck)
