"""Where an API key comes from, what of it is told, and that a lost one opens no server."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tandem.command import run_command
from tandem.runtime import loading, serve
from tandem.runtime.cli import run
from tandem.runtime.service import Service
from tests.service import ScriptedWorker, scripted_service

SECRET = "s3cret-é"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | None]]:
    """Keys that servers were started with; none is, and no variable is set."""
    keys: list[str | None] = []

    def start(service: Service, bound: socket.socket, *, api_key: str | None = None) -> None:
        keys.append(api_key)

    monkeypatch.setattr(loading, "load", lambda path, options: scripted_service(ScriptedWorker()))
    monkeypatch.setattr(serve, "serve", start)
    for name in ("TANDEM_API_KEY", "TANDEM_RUN_API_KEY", "TANDEM_RUN_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    yield keys


def start(*words: str) -> int:
    return run_command(run, "tandem-run", ("bundle", "--port", "0", *words))


def key_file(folder: Path, data: bytes, name: str = "key") -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


def test_every_way_to_give_a_key(served: list[str | None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = key_file(tmp_path, b"from a file \r\n\n")
    assert start() == start("--api-key", "typed") == start("--api-key-file", file) == 0
    assert served == [None, "typed", "from a file"]
    monkeypatch.setenv("TANDEM_API_KEY", "short name ")
    assert start() == 0
    monkeypatch.setenv("TANDEM_RUN_API_KEY", "long name")
    assert start() == start("--api-key", "typed") == start("--api-key-file", file) == 0
    assert served[3:] == ["short name", "long name", "typed", "from a file"]
    monkeypatch.setenv("TANDEM_RUN_API_KEY_FILE", file)
    assert start("--api-key", "typed") == 0
    monkeypatch.delenv("TANDEM_API_KEY")
    monkeypatch.delenv("TANDEM_RUN_API_KEY")
    assert start() == 0
    assert served[7:] == ["typed", "from a file"]


@pytest.mark.parametrize("data", [SECRET.encode(), f"\ufeff{SECRET}\n".encode(), f" \t{SECRET} \r\n \n".encode()])
def test_whitespace_around_a_key(served: list[str | None], tmp_path: Path, data: bytes) -> None:
    assert start("--api-key-file", key_file(tmp_path, data)) == 0
    assert served == [SECRET]


@pytest.mark.parametrize(
    ("words", "variables", "part"),
    [
        (("--api-key", ""), {}, "the API key is empty"),
        (("--api-key", " \n"), {}, "the API key is empty"),
        (("--api-key", f"{SECRET}\nx"), {}, "control character"),
        (("--api-key", f"{SECRET}\udcff"), {}, "UTF-8"),
        (("--api-key", SECRET, "--api-key-file", "good"), {}, "exclude each other"),
        (("--api-key-file", "none"), {}, "none"),
        (("--api-key-file", "."), {}, "directory"),
        (("--api-key-file", "empty"), {}, "empty is empty"),
        (("--api-key-file", "blank"), {}, "blank is empty"),
        (("--api-key-file", "two"), {}, "two holds a line's end"),
        (("--api-key-file", "binary"), {}, "binary: not a text file"),
        ((), {"TANDEM_API_KEY": ""}, "TANDEM_API_KEY is empty"),
        ((), {"TANDEM_RUN_API_KEY": ""}, "TANDEM_RUN_API_KEY is empty"),
        ((), {"TANDEM_API_KEY": "\t"}, "the API key is empty"),
        ((), {"TANDEM_RUN_API_KEY_FILE": ""}, "TANDEM_RUN_API_KEY_FILE is empty"),
        ((), {"TANDEM_RUN_API_KEY_FILE": "none"}, "none"),
        ((), {"TANDEM_API_KEY": SECRET, "TANDEM_RUN_API_KEY_FILE": "good"}, "exclude each other"),
    ],
)
def test_no_server_starts(
    words: Sequence[str],
    variables: dict[str, str],
    part: str,
    served: list[str | None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {"good": SECRET, "empty": "", "blank": "\ufeff \n", "two": f"{SECRET}\n{SECRET}\n"}
    for name, text in files.items():
        key_file(tmp_path, text.encode(), name)
    key_file(tmp_path, b"\xff\xfe" + SECRET.encode(), "binary")
    monkeypatch.chdir(tmp_path)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert start(*words) == 2
    err = capsys.readouterr().err
    assert part in err and err.count("\n") == 1 and "s3cret" not in err
    assert served == []


def test_a_key_is_told_to_nobody(
    served: list[str | None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("TANDEM_API_KEY", SECRET)
    with caplog.at_level(logging.DEBUG):
        assert start("--verbose") == 0
        assert run_command(run, "tandem-run", ("--help",)) == 0
    shown = "".join(capsys.readouterr()) + caplog.text
    assert served == [SECRET] and "s3cret" not in shown
