"""`tandem-run` as a user meets it: roads and flags, text on stdout, rates on stderr, exit codes, quick starts."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tandem.command import run_command
from tandem.errors import TandemError
from tandem.runtime import loading, terminal
from tandem.runtime.chat import ChatTemplate
from tandem.runtime.cli import _settle, run
from tandem.runtime.drafters.shelf_options import ShelfOptions
from tandem.runtime.loading import LoadOptions
from tandem.runtime.relaxed import Relaxation
from tandem.runtime.request import LaneStats, Sampling
from tandem.runtime.service import Service
from tests.service import CONTEXT_LENGTH, IM_END, IM_START, ScriptedWorker, scripted_service

ROOT = Path(__file__).resolve().parent.parent.parent
HI_IDS = (IM_START, *b"user\nhi", IM_END, *b"\n", IM_START, *b"assistant\n")


@dataclass
class Loader:
    """Stands where a bundle would be opened: a service over `worker`, without a template if the path is `bare`."""

    worker: ScriptedWorker
    options: list[LoadOptions] = field(default_factory=list)

    def load(self, path: Path, options: LoadOptions) -> Service:
        self.options.append(options)
        self.worker.stopped = False
        return scripted_service(self.worker, **({"chat": ChatTemplate(None)} if path.name == "bare" else {}))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loader:
    loader = Loader(ScriptedWorker([list(b"one"), [*" zwö".encode(), IM_END]]))
    monkeypatch.setattr(loading, "load", loader.load)
    return loader


def command(*words: str) -> int:
    return run_command(run, "tandem-run", words)


def test_a_prompt_is_a_chat_turn(loaded: Loader, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("bundle", "--prompt", "hi") == 0
    out, err = capsys.readouterr()
    assert out == "one zwö\n"
    assert f"[{len(HI_IDS)} + 9 tokens" in err and err.count("\n") == 1
    assert loaded.worker.requests[0].prompt == HI_IDS


def test_a_raw_prompt_and_a_bundle_without_a_template(loaded: Loader) -> None:
    assert command("bundle", "--prompt", "hi", "--raw", "--max-tokens", "7") == 0
    assert command("bare", "--prompt", "hi") == 0
    raw, bare = loaded.worker.requests
    assert raw.prompt == bare.prompt == tuple(b"hi")
    assert raw.max_tokens == 7


def test_json(loaded: Loader, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("bundle", "--prompt", "hi", "--json", "--stop", "zw") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert (found["text"], found["finish_reason"], found["ids"]) == ("one ", "stop", list(b"one zw"))
    assert set(found["stats"]) == set(LaneStats.__dataclass_fields__)


def test_a_schema_from_a_file(loaded: Loader, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": [true]}')
    assert command("bundle", "--prompt", "hi", "--json-schema", str(schema)) == 0
    request = loaded.worker.requests[0]
    guide = request.guides[0](request.prompt, request.stop_ids)
    assert guide.keeps(ord("t"), []) and not guide.keeps(ord("f"), [])
    for wrong, code, part in ((b'{"type": 5}', 1, "JSON schema cannot be compiled"), (b"\xff", 2, "--json-schema")):
        schema.write_bytes(wrong)
        capsys.readouterr()
        assert command("bundle", "--prompt", "hi", "--json-schema", str(schema)) == code
        err = capsys.readouterr().err
        assert part in err and err.count("\n") == 1


def test_flags_reach_the_engine(loaded: Loader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.touch()
    for name, value in {"TOP_K": "4", "TOOL_CALL_PARSER": "llama", "REASONING_PARSER": "none"}.items():
        monkeypatch.setenv(f"TANDEM_RUN_{name}", value)
    words = "--temperature 0.5 --top-p 0.9 --min-p 0.1 --seed 3 --drafter none --threads 2 --max-model-len 64"
    words += " --corpus c --corpus d --suffix-store s --suffix-store-scope outputs --suffix-store-mib 7"
    shelves = ShelfOptions((Path("c"), Path("d")), Path("s"), 7, "outputs", False)
    words += " --gpu-memory-utilization 0.5 --think-budget 9 --think-closing </think> --conductor on"
    assert command("bundle", "--prompt", "hi", *words.split(), "--trust-native", "--trust-key", str(key)) == 0
    assert loaded.worker.requests[0].sampling == Sampling(0.5, 0.9, 4, 0.1, 3)
    limits: dict[str, Any] = {"threads": 2, "gpu_memory_utilization": 0.5, "max_num_seqs": 1, "max_model_len": 64}
    limits |= {"think_budget": 9, "think_closing": "</think>", "conductor": "on"}
    parsers: dict[str, Any] = {"tool_call_parser": "llama", "reasoning_parser": "none"}
    assert loaded.options == [
        LoadOptions(drafter="none", trust_native=True, trust_keys=(key,), shelves=shelves, **limits, **parsers)
    ]


def test_accept_rules_are_exact_unless_a_flag_relaxes_them(loaded: Loader) -> None:
    assert command("bundle", "--prompt", "hi") == 0
    assert command("bundle", "--prompt", "hi", "--relax-tau", "0.5") == 0
    assert command("bundle", "--prompt", "hi", "--relax-tau", "0", "--relax-rank", "4") == 0
    assert [made.relaxation for made in loaded.options] == [None, Relaxation(0.5), Relaxation(0.0, 4)]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "BUNDLE"),
        (("b", "--prompt", "x", "--chat"), "exclude"),
        (("b", "--json"), "--json goes with --prompt"),
        (("b", "--chat", "--raw"), "--raw goes with --prompt"),
        (("b", "--prompt", "x", "--temperature", "3"), "temperature"),
        (("b", "--prompt", "x", "--stop", ""), "--stop"),
        (("b", "--drafter", "magic"), "drafter"),
        (("b", "--tool-call-parser", "magic"), "tool-call-parser"),
        (("b", "--prompt", "x", "--reasoning-parser", "none"), "--reasoning-parser goes with serving"),
        (("b", "--gpu-memory-utilization", "0"), "gpu-memory-utilization"),
        (("b", "--think-budget", "-1"), "think-budget"),
        (("b", "--think-closing", "\udcff"), "UTF-8"),
        (("b", "--conductor", "off"), "conductor"),
        (("b", "--temperature", "1"), "--temperature goes with --prompt or --chat"),
        (("b", "--prompt", "x", "--port", "0"), "--port goes with serving"),
        (("b", "--api-key", " ", "--port", "0"), "API key"),
        (("b", "--api-key", "\udcff"), "UTF-8"),
        (("b", "--served-model-name", "a\udcff"), "UTF-8"),
        (("b", "--suffix-store-readonly"), "--suffix-store-readonly goes with --suffix-store"),
        (("b", "--suffix-store", "s", "--suffix-store-mib", "0"), "suffix-store-mib"),
        (("b", "--suffix-store", "s", "--suffix-store-scope", "none"), "suffix-store-scope"),
        (("b", "--relax-tau", "-1"), "relax-tau"),
        (("b", "--prompt", "x", "--relax-tau", "inf"), "--relax-tau is inf"),
        (("b", "--relax-rank", "1"), "relax-rank"),
        (("b", "--prompt", "x", "--relax-rank", "2", "--drafter", "none"), "--drafter none drafts none"),
    ],
)
def test_usage_errors(words: Sequence[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(*words) == 2
    out, err = capsys.readouterr()
    assert out == "" and part in err and err.count("\n") == 1


def test_a_prompt_too_long_is_one_line(loaded: Loader, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("bundle", "--prompt", "x" * 500) == 1
    err = capsys.readouterr().err
    assert str(500 + len(HI_IDS) - 2) in err and str(CONTEXT_LENGTH) in err and err.count("\n") == 1


def test_no_bundle_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(str(tmp_path / "none"), "--prompt", "x") == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ") and "none" in err and err.count("\n") == 1


def test_a_port_in_use_is_found_before_the_bundle_is_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert command(str(tmp_path / "none"), "--port", str(port)) == 1
    err = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1:{port}" in err and err.count("\n") == 1


def test_a_chat_remembers_and_survives_a_failed_answer(capsys: pytest.CaptureFixture[str]) -> None:
    worker = ScriptedWorker([[*b"one", IM_END]])
    lines = iter(["hi", "", "x" * 300, b"\xff", "again"])

    def read() -> str:
        try:
            line = next(lines)
            return line if isinstance(line, str) else line.decode()  # as input() does where stdin is strict
        except StopIteration:
            raise EOFError from None

    terminal.chat(scripted_service(worker), terminal.Wishes(), read)
    out, err = capsys.readouterr()
    assert out == "one\none\n\n"
    assert err.count("error: the prompt is") == err.count("error: the line is not utf-8 text") == 1
    second = (*HI_IDS, *b"one", IM_END, *b"\n", IM_START, *b"user\nagain", IM_END, *b"\n", IM_START, *b"assistant\n")
    assert [request.prompt for request in worker.requests] == [HI_IDS, second]


def ctrl_c() -> None:
    """What a terminal sends, once an answer is being waited for."""
    while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        time.sleep(1e-3)
    time.sleep(0.05)  # Python's locks do not hear a signal that comes while they are about to wait
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_stops_the_answer_not_the_chat(capsys: pytest.CaptureFixture[str]) -> None:
    worker = ScriptedWorker([list(b"one"), list(b"never")], hold=1)
    lines: list[Any] = ["hi", KeyboardInterrupt(), EOFError()]

    def read() -> str:
        line = lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        threading.Thread(target=ctrl_c, daemon=True).start()
        return line

    terminal.chat(scripted_service(worker), terminal.Wishes(), read)
    assert capsys.readouterr().out == "one\n\n\n"
    assert [end.value for end in worker.ends] == ["cancelled"]


def test_ctrl_c_ends_one_answer_with_130(loaded: Loader, capsys: pytest.CaptureFixture[str]) -> None:
    loaded.worker = ScriptedWorker([list(b"one"), list(b"never")], hold=1)
    threading.Thread(target=ctrl_c, daemon=True).start()
    assert command("bundle", "--prompt", "hi") == 130
    out, err = capsys.readouterr()
    assert out == "one\n" and err.endswith("error: interrupted\n")


def test_an_engine_that_fails_is_one_line(loaded: Loader, capsys: pytest.CaptureFixture[str]) -> None:
    loaded.worker = ScriptedWorker([list(b"one")], error=TandemError("a pass failed"))
    assert command("bundle", "--prompt", "hi") == 1
    assert capsys.readouterr().err.endswith("error: a pass failed\n")


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", code + "\nimport sys; print(*sys.modules)"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_one_prompt_needs_no_http_and_help_needs_nothing() -> None:
    heavy = {"starlette", "uvicorn", "asyncio"}
    road = "import tandem.runtime.cli, tandem.runtime.terminal, tandem.runtime.loading"
    assert not modules_after(road) & heavy
    assert not modules_after("import tandem.runtime.cli") & (heavy | {"numpy", "tokenizers", "jinja2", "msgspec"})


def test_what_was_loaded_is_out_of_the_collectors_sight() -> None:
    gc.disable()
    try:
        _settle()
        assert gc.isenabled() and gc.get_freeze_count() > 0
    finally:
        gc.enable()
        gc.unfreeze()
