"""A chat on a real terminal: figures hold its last row while an answer runs, and leave nothing behind."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tandem.runtime import terminal
from tandem.runtime.figures import rates, summary
from tandem.runtime.live import Totals
from tandem.runtime.request import LaneStats
from tests.children import environment
from tests.screen import Screen
from tests.service import IM_END, PATIENCE, ScriptedWorker, scripted_service

ROWS, COLUMNS = 8, 50
PROMPT = ">$"
FIGURES = re.compile(r"\d+ tokens, [\d.]+ tokens/s, \d+\.\d\d tokens a round")
CHAT = """
from tandem.runtime import terminal
from tests.service import ScriptedWorker, scripted_service
worker = ScriptedWorker({rounds}, endless={endless}, hold={hold})
terminal.chat(scripted_service(worker, context_length=10**6), terminal.Wishes({max_tokens}))
print(*worker.ends)
"""


class Terminal:
    """The user's end: keys in, a screen out."""

    def __init__(self, end: int, process: subprocess.Popen[bytes]) -> None:
        self._end, self.process = end, process
        self.written = ""
        self.screen = Screen(ROWS, COLUMNS)
        os.set_blocking(end, False)

    def press(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def wait(self, pattern: str) -> None:
        """Until `pattern` stands on the screen."""
        until = time.monotonic() + PATIENCE
        while not re.search(pattern, "\n".join(self.look().lines), re.MULTILINE):
            assert time.monotonic() < until, (pattern, self.screen.lines, self.written)
            time.sleep(0.01)

    def look(self) -> Screen:
        try:
            while piece := os.read(self._end, 1 << 16):
                self.written += piece.decode()
        except (BlockingIOError, OSError):  # nothing now, or the other end has gone
            pass
        self.screen = Screen(ROWS, COLUMNS)
        self.screen.feed(re.sub(r"\x1b[^A-Za-z78]*$", "", self.written))
        return self.screen

    def leave(self) -> list[str]:
        """Ctrl-D; all lines that were ever left on the screen."""
        self.press("\x04")
        assert self.process.wait(PATIENCE) == 0, self.written
        screen = self.look()
        assert screen.is_whole
        return [*screen.gone, *screen.lines]


def sized_pty() -> tuple[int, int]:
    """The user's end and the program's."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    return here, there


@contextmanager
def chatting(
    rounds: object, *, endless: bool = False, hold: int | None = None, max_tokens: int = 10**5, term: str = "xterm"
) -> Iterator[Terminal]:
    here, there = sized_pty()
    code = CHAT.format(rounds=rounds, endless=endless, hold=hold, max_tokens=max_tokens)
    own = {**environment(), "TERM": term, "INPUTRC": os.devnull}
    streams = {"stdin": there, "stdout": there, "stderr": there}
    process = subprocess.Popen([sys.executable, "-c", code], env=own, start_new_session=True, **streams)  # type: ignore[call-overload]
    os.close(there)
    try:
        yield Terminal(here, process)
    finally:
        process.kill()
        process.wait()
        os.close(here)


def test_figures_stand_in_the_last_row_while_an_answer_runs() -> None:
    """Answers longer than the screen, the second one from its last row. Nothing is lost, and the row is given back."""
    words = [f"{n:04d} " for n in range(200)]
    with chatting([list(word.encode()) for word in words], hold=150, max_tokens=1000) as user:
        for said in ("hi", "again"):
            user.wait(PROMPT)
            user.press(f"{said}\r")
            user.wait(f"(?s)0149.*{FIGURES.pattern}")
            assert FIGURES.match(user.screen.lines[-1]) and not user.screen.is_whole
            assert sum(bool(FIGURES.search(line)) for line in user.screen.lines) == 1
            user.process.send_signal(signal.SIGINT)  # what Ctrl-C is where the terminal is the process' own
            user.wait(r"drafts accepted\]\s+>$")
            assert user.screen.is_whole
        lines = user.leave()
    text = "".join(line.ljust(COLUMNS) for line in lines)
    for answer in text.split("> ")[1:3]:
        assert [int(n) for n in re.findall(r"\b\d{4}\b", answer.split("[")[0])] == list(range(150))
    assert FIGURES.search(text) is None and "cancelled cancelled" in lines


def test_before_the_first_token_the_prompt_is_being_read() -> None:
    with chatting([list(b"one"), [IM_END]], hold=0) as user:
        user.wait(PROMPT)
        user.press("hi\r")
        user.wait(r"reading the prompt, 0\.[3-9] s")
        user.process.send_signal(signal.SIGINT)
        user.wait(r"0 tokens")
        assert not any("reading" in line for line in user.leave())


def test_a_dumb_terminal_gets_no_control_words() -> None:
    with chatting([list(b"one"), [IM_END]], term="dumb") as user:
        user.wait(PROMPT)
        user.press("hi\r")
        user.wait(r"\]\s+>$")
        assert "one" in user.look().lines
        assert "\x1b" not in user.written.split("hi")[1].split("]")[0]


@pytest.mark.parametrize("piped", ["stdout", "stderr"])
def test_a_pipe_gets_no_figures_while_an_answer_runs(piped: str) -> None:
    here, there = sized_pty()
    code = CHAT.format(rounds=[[65]] * 60, endless=False, hold=None, max_tokens=60)
    streams = {"stdout": there, "stderr": there, piped: subprocess.PIPE}
    try:
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, env=environment() | {"TERM": "xterm"}, **streams
        ) as process:  # type: ignore[call-overload]
            out, err = process.communicate(b"hi\n", PATIENCE)
        assert process.returncode == 0
        assert b"\x1b7" not in (out or err)
        assert b"\x1b7" not in os.read(here, 1 << 16)
    finally:
        os.close(here)
        os.close(there)


def test_commands_are_not_for_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    worker = ScriptedWorker([[*b"one", IM_END]])
    lines = iter(["/help", "hi", "again", " /stats ", "/reset", "hi", "/etc is a folder"])

    def read() -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    terminal.chat(scripted_service(worker), terminal.Wishes(), read)
    out, err = capsys.readouterr()
    assert out == "one\n" * 4 + "\n"
    assert terminal.HELP in err
    first, second, third, fourth = worker.requests
    assert first.prompt == third.prompt != second.prompt
    assert b"/etc is a folder" in bytes(i for i in fourth.prompt if i < 256)
    assert f"answers: 2 [{len(first.prompt) + len(second.prompt)} + 8 tokens," in err


def test_a_summary_of_several_answers() -> None:
    """A first token is no round's: 4 + 2 tokens in 2 + 1 rounds and 60 ms."""
    one, two = LaneStats(10, 5, 2, 6, 3, 7.0, 40.0), LaneStats(20, 3, 1, 2, 1, 8.0, 20.0)
    assert summary(one, two) == (
        "[30 + 8 tokens, prefill 15 ms, 100.0 tokens/s, 2.00 tokens a round, 4 of 8 drafts accepted (50 %)]"
    )
    assert summary() == "[0 + 0 tokens, prefill 0 ms, 0.0 tokens/s, 0.00 tokens a round, 0 of 0 drafts accepted]"


def test_rates_are_differences() -> None:
    before, now = Totals(10.0, 100, 90, 50, 30, 20), Totals(12.0, 140, 128, 69, 38, 26)
    assert rates(before, now) == "40 tokens, 20.0 tokens/s, 2.00 tokens a round, 75 % of drafts accepted"
    assert rates(before, Totals(11.5, 101, 90, 50, 30, 20)) == "1 tokens, 0.7 tokens/s"
    assert rates(before, Totals(11.5, 100, 90, 50, 30, 20)) == "reading the prompt, 1.5 s"
