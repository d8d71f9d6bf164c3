"""A progress bar on stderr, and nothing at all where stderr is no terminal."""

from __future__ import annotations

import sys
from types import TracebackType


class Progress:
    """One bar over the whole compile, in shares of it: `stage` names what is going on, `advance` moves on."""

    def __init__(self, *, quiet: bool = False) -> None:
        from tqdm import tqdm

        hidden = quiet or not sys.stderr.isatty()
        layout = "{desc:<44.44} {percentage:3.0f}% |{bar}| {elapsed}"
        self._bar = tqdm(total=100.0, file=sys.stderr, disable=hidden, bar_format=layout, leave=False)
        self._end = 0.0

    def stage(self, name: str, share: float) -> None:
        """The next `share` percent are for `name`; what the last stage left over is filled up."""
        self._fill()
        self._end += share
        self._bar.set_description_str(name)

    def advance(self, percent: float, name: str | None = None) -> None:
        """Moves on within the stage, never past its end."""
        self._bar.update(min(percent, self._end - self._bar.n))
        if name is not None:
            self._bar.set_description_str(name)

    def say(self, line: str) -> None:
        """A line above the bar."""
        self._bar.write(line, file=sys.stderr)

    def _fill(self) -> None:
        self._bar.update(max(0.0, self._end - self._bar.n))

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._bar.close()
