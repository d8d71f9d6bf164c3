"""The key that clients have to send: from a flag, a file or the environment. It is never shown, in errors neither.

Knows nothing of how requests carry it.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.core import ParameterSource

from tandem.errors import UsageError

VARIABLES = ("TANDEM_RUN_API_KEY", "TANDEM_API_KEY")
"""Environment variables that hold a key; the first that is set counts."""

FILE_VARIABLE = "TANDEM_RUN_API_KEY_FILE"
CONTROLS = frozenset(map(chr, (*range(32), 127)))


def api_key(given: str | None, file: Path | None) -> str | None:
    """The key from `--api-key` (or its variables) or `--api-key-file`; None where clients need none.

    Whitespace around it is dropped, as in a request. UsageError for two of them, and for one that is empty: a key that
    got lost on its way here must not open the server.
    """
    if given is not None and file is not None:
        given, file = _from_command_line(given, file)
    if given is None and file is None:
        # click takes an empty variable for one that is not there.
        if empty := next((name for name in (*VARIABLES, FILE_VARIABLE) if name in os.environ), None):
            raise UsageError(f"{empty} is empty; put an API key into it, or unset it to serve without one")
        return None
    where = "the API key" if file is None else str(file)
    key = (given or "" if file is None else _read(file)).strip()
    if not key:
        raise UsageError(f"{where} is empty; give a key, or leave the flag out to serve without one")
    if CONTROLS.intersection(key):
        raise UsageError(f"{where} holds a line's end or another control character; no client could send it")
    return key


def _from_command_line(given: str, file: Path) -> tuple[str | None, Path | None]:
    """Of a key and a file of one, that which was typed; the other comes from the environment."""
    source = click.get_current_context().get_parameter_source
    typed = [source(name) is ParameterSource.COMMANDLINE for name in ("api_key", "api_key_file")]
    if typed[0] == typed[1]:
        raise UsageError("--api-key and --api-key-file (or their variables) exclude each other; leave one out")
    return (given, None) if typed[0] else (None, file)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not a text file; put the API key alone into it") from error
