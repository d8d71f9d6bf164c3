"""What every command does around its own work: exit codes, one-line errors, pipes and Ctrl-C.

Knows nothing of what the commands do. stdout carries the result, stderr everything else.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click
from click.exceptions import NoArgsIsHelpError

from tandem.errors import TandemError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect it (128 + SIGINT)."""


def examples(*lines: str) -> str:
    """The end of a help page: command lines that are not wrapped."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


def run_command(
    command: click.Command,
    name: str,
    arguments: Sequence[str] | None = None,
    ended_by: Sequence[signal.Signals] = (),
) -> int:
    """Runs `command` as the program `name` and returns its exit code.

    `ended_by`: signals that interrupt it (as Ctrl-C does any command), whatever error a library makes of that.

    An int returned by the command (or given to `ctx.exit`) is the exit code, anything else is 0. A `TandemError`
    or `OSError` becomes one line on stderr; every other exception is a bug and keeps its traceback. Each option
    can also be set through the environment: `--max-rows` of `tandem-run` is `TANDEM_RUN_MAX_ROWS`.
    """
    try:
        with _interrupted(ended_by):
            result = command.main(
                None if arguments is None else list(arguments),
                prog_name=name,
                standalone_mode=False,
                auto_envvar_prefix=re.sub(r"\W", "_", name.upper()),
            )
        if sys.stdout is not None:  # closed by who started us: click writes nothing then
            sys.stdout.flush()
        return result if type(result) is int else 0
    except NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        return _fail(f"{error.format_message()} (see '{_path(error, name)} --help')", error.exit_code)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except TandemError as error:
        return _fail(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return _reader_left()
    except OSError as error:
        where = f": {os.fspath(error.filename)}" if error.filename else ""
        return _fail(f"{error.strerror or error}{where}", 1)


@contextmanager
def _interrupted(signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Raises KeyboardInterrupt at `signals`, and for an error that follows: native code may translate the first."""
    seen = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen = True
        signal.default_int_handler(number, frame)

    heeded = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup sets it
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    except Exception as error:
        if seen:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _path(error: click.UsageError, name: str) -> str:
    return error.ctx.command_path if error.ctx else name


def _fail(message: str, code: int) -> int:
    click.echo("error: " + " ".join(message.splitlines()), err=True)
    return code


def _reader_left() -> int:
    # The interpreter flushes stdout once more at exit, which must not fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
