"""Exit codes and one-line errors, the same for every command."""

from __future__ import annotations

import errno
import importlib
import signal
import subprocess
import sys

import click
import pytest

from tandem import __version__
from tandem.command import run_command
from tandem.errors import BundleCorrupt, TandemError, UsageError


def run(raised: BaseException | None = None, result: object = None, arguments: tuple[str, ...] = ()) -> int:
    @click.command()
    @click.option("--max-rows", type=int, default=0)
    def command(max_rows: int) -> object:
        if raised:
            raise raised
        return result if result is not None else max_rows

    return run_command(command, "tandem-test", arguments)


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (TandemError("a: wrong"), 1, "a: wrong"),
        (BundleCorrupt("two\nlines"), 1, "two lines"),
        (UsageError("no"), 2, "no"),
        (click.UsageError("bad"), 2, "bad (see 'tandem-test --help')"),
        (click.ClickException("bad"), 1, "bad"),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), 1, "No space left on device: /x"),
        (OSError("odd"), 1, "odd"),
        (click.Abort(), 130, "interrupted"),
    ],
)
def test_an_error_is_one_line_and_a_code(
    raised: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(raised) == code
    assert capsys.readouterr() == ("", f"error: {line}\n")


def test_ctrl_c_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err.strip() == "error: interrupted"


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("made_of_it", [ValueError("no shape"), TandemError("damaged"), OSError("odd")])
def test_an_interrupt_stays_one_whatever_a_library_makes_of_it(
    made_of_it: Exception, sign: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def command() -> None:
        try:
            signal.raise_signal(sign)
        except KeyboardInterrupt:
            raise made_of_it from None

    before = signal.getsignal(sign)
    assert run_command(command, "tandem-test", [], ended_by=(signal.SIGINT, signal.SIGTERM)) == 130
    assert capsys.readouterr().err.strip() == "error: interrupted"
    assert signal.getsignal(sign) is before


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    """As nohup and a shell's background jobs have it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        command = click.command()(lambda: signal.raise_signal(signal.SIGINT))
        assert run_command(command, "tandem-test", [], ended_by=(signal.SIGINT,)) == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run(ZeroDivisionError())


def test_an_int_is_the_exit_code() -> None:
    assert (run(result=1), run(result=True), run(result="text"), run()) == (1, 0, 0, 0)


def test_an_unknown_option_is_one_line_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments=("--max-row", "3")) == 2
    err = capsys.readouterr().err
    assert "--max-row" in err and "see 'tandem-test --help'" in err and err.count("\n") == 1


def test_options_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_TEST_MAX_ROWS", "7")
    assert run() == 7


PIPED = """
import sys, click
from tandem import __version__
from tandem.command import run_command
@click.command()
def command():
    for _ in range(100_000):
        click.echo("line")
sys.exit(run_command(command, "tandem-test"))
"""


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    process = subprocess.Popen([sys.executable, "-c", PIPED], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1
    process.stderr.close()


def test_a_stdout_that_was_closed_before_is_no_error() -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", PIPED]
    assert subprocess.run(closed, stderr=subprocess.PIPE).stderr == b""


COMMANDS = ["artifacts.cli:cli", "compile.cli:command", "runtime.cli:run", "runtime.checks.cli:cli"]


@pytest.mark.parametrize("room", COMMANDS)
def test_every_command_knows_help_and_version(room: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, name = room.split(":")
    command = getattr(importlib.import_module(f"tandem.{module}"), name)
    for flag, word in (("-h", "Usage:"), ("--help", "Usage:"), ("--version", __version__)):
        assert run_command(command, "tandem-test", [flag]) == 0
        assert word in capsys.readouterr().out
