"""The pipe to the proving process: whatever the process does, there is a result or one line, and no process stays."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tandem.artifacts.io import Geometry
from tandem.compile import examine as door
from tandem.errors import CompileError, ProofError, TandemError
from tandem.keys import TARGET_KINDS, Kind

GEOMETRY = Geometry(64, 100, 8, 4, 2, 64, 4096, ((2, 64), (2, 64)))
PROVED = {"proof": {"cases": 5, "differing": 0, "first": []}, "oracle": {}, "prices": {"step_ms": 1.0}}


def examine(
    monkeypatch: pytest.MonkeyPatch, folder: Path, source: str, steps: list[str] | None = None
) -> dict[str, Any]:
    """`examine` with a module made of `source` in the place of the runtime's. It leaves its process id in a file."""
    (folder / "fake_prover.py").write_text(
        f"import json, os, sys, time\nopen({str(folder / 'pid')!r}, 'w').write(str(os.getpid()))\n" + source
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(door, "MODULE", "fake_prover")
    paths = {kind: folder / kind for kind in TARGET_KINDS}
    heard = [] if steps is None else steps
    try:
        return door.examine(door.Staged(GEOMETRY, folder / "w", folder / "l", paths, threads=2), heard.append)
    finally:
        with pytest.raises(ProcessLookupError):
            os.kill(int((folder / "pid").read_text()), 0)


def say(message: object) -> str:
    return f"print(json.dumps({message!r}), flush=True)\n"


def test_the_request_arrives_and_the_result_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = f"request = json.load(sys.stdin)\n{say({'step': 'one'})}{say({'step': 'two'})}"
    source += "print(json.dumps({'result': {**" + repr(PROVED) + ", 'request': request}}))\n"
    steps: list[str] = []
    found = examine(monkeypatch, tmp_path, source, steps)
    assert steps == ["one", "two"]
    assert found["prices"] == {"step_ms": 1.0}
    request = found["request"]
    assert request["programs"] == {kind.value: str(tmp_path / kind) for kind in TARGET_KINDS}
    assert (request["weights"], request["library"], request["threads"]) == (str(tmp_path / "w"), str(tmp_path / "l"), 2)
    assert request["device"] == "cpu" and request["geometry"]["kv_planes"] == [[2, 64], [2, 64]]


def test_a_cuda_request_names_every_entry_and_the_folder_of_cubins(tmp_path: Path) -> None:
    shared = tmp_path / "chain-1024-4.tdp"
    programs = tuple(door.StagedProgram(kind, 1024, 4, shared) for kind in (Kind.EXTEND, Kind.VERIFY_CHAIN))
    staged = door.StagedCuda(GEOMETRY, tmp_path / "w", tmp_path / "kernels", tmp_path / "c", programs, device_index=1)
    request = json.loads(json.dumps(staged.request()))
    assert request.pop("geometry")["kv_planes"] == [[2, 64], [2, 64]]
    entry = {"context_class": 1024, "rows": 4, "path": str(shared)}
    assert request == {
        "device": "cuda",
        "weights": str(tmp_path / "w"),
        "cubins": str(tmp_path / "kernels"),
        "copier": str(tmp_path / "c"),
        "programs": [{"kind": "extend"} | entry, {"kind": "verify-chain"} | entry],
        "device_index": 1,
    }


def test_a_process_that_lingers_after_its_result_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert examine(monkeypatch, tmp_path, say({"result": PROVED}) + "time.sleep(600)") == PROVED


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("raise RuntimeError('no room')", "ended early: RuntimeError: no room"),
        ("sys.exit(3)", "ended early: exit code 3, and not a word"),
        (say({"step": "a"}) + "os.kill(os.getpid(), 11)", "ended early: exit code -11"),
        (say({"step": "a"}) + "sys.exit('stopped\\nat last')", "ended early: at last"),
        ("print('hello')", "what is no message: b'hello"),
        ("print('x' * 100000)", "what is no message"),
        ("print('[1, 2]')", "what is no message"),
        ("print('{\"step\": 7}')", "what is no message"),
        ("print('{\"result\": []}')", "what is no message"),
        ("sys.stdout.buffer.write(bytes([255, 10]))", "what is no message"),
        ("sys.stdin.close()\nos.close(0)\ntime.sleep(0.1)\nsys.exit(1)", "ended early: exit code 1"),
        ("sys.stderr.buffer.write(bytes([255, 10]))\nsys.exit(1)", "ended early: "),
        ("sys.stdout.close()\nos.close(1)\nsys.exit('quiet')", "ended early: quiet"),
    ],
)
def test_a_process_that_fails_gives_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, line: str
) -> None:
    with pytest.raises(CompileError) as caught:
        examine(monkeypatch, tmp_path, source)
    assert "the proving process " in str(caught.value) and line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 200


def test_bits_that_differ_are_told_by_the_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    proof = {"cases": 9, "differing": 2, "first": ["extend, chunks of 3, position 7: logits", "another"]}
    with pytest.raises(ProofError, match=r"2 of 9 comparisons differ, first: extend, chunks of 3, position 7: logits"):
        examine(monkeypatch, tmp_path, say({"result": PROVED | {"proof": proof}}))


def test_an_interrupt_ends_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Interrupted(list[str]):
        def append(self, _: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine(monkeypatch, tmp_path, say({"step": "one"}) + "time.sleep(600)", Interrupted())


def test_the_real_module_refuses_what_is_no_request(tmp_path: Path) -> None:
    paths = dict.fromkeys(TARGET_KINDS, tmp_path / "none")
    with pytest.raises(TandemError, match=r"the proving process ended early: .*none"):
        none = door.Staged(GEOMETRY, tmp_path / "none", tmp_path / "none", paths, threads=1)
        door.examine(none, lambda step: None)
