"""A bar on stderr that fills with bytes; nothing where nobody watches.

Knows nothing of what is counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from tandem.artifacts.digest import Progress
from tandem.artifacts.shipping.transfer import Meter


def meter(label: str) -> Meter:
    """Bars called `label`."""

    @contextmanager
    def show(total: int) -> Iterator[Progress]:
        with click.progressbar(length=total, label=label, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
            yield bar.update

    return show
