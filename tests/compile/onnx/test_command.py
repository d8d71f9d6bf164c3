"""`tandem-bundle export-onnx` on a compiled bundle: two files or nothing, one line for everything that cannot be."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tandem.artifacts.cli import cli
from tandem.artifacts.reader import open_bundle
from tandem.command import run_command
from tandem.compile.onnx import check
from tandem.compile.onnx.parameters import Parameters
from tests.bundles import compiled
from tests.tiny import VOCAB_SIZE


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str


Export = Callable[..., Done]


@pytest.fixture
def export(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Export:
    """Runs the command in an empty folder, reached as users reach it."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Done:
        capfd.readouterr()
        code = run_command(cli, "tandem-bundle", ["export-onnx", *map(str, arguments)])
        return Done(code, *capfd.readouterr())

    return run


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_bundle_becomes_two_files(export: Export, tmp_path: Path) -> None:
    done = export(compiled("smollm2", "bf16"))
    assert (done.code, done.out) == (0, "model.onnx\n")
    assert done.err.startswith("ONNX Runtime's logits of 12 tokens are within ")
    assert files(tmp_path) == {"model.onnx", "model.onnx.data"}
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    manifest = json.loads((compiled("smollm2", "bf16") / "manifest.json").read_text())
    assert facts["tandem.content_id"] == manifest["content_id"]
    assert facts["tandem.context_length"] == "256"
    past = {value.name: np.zeros((1, 2, 0, 16), np.float32) for value in session.get_inputs()[1:]}
    logits = session.run(["logits"], {"input_ids": np.array([[1, 2, 3]]), **past})[0]
    assert logits.shape == (1, 3, VOCAB_SIZE)


def test_the_loop_of_the_docs_writes_the_most_likely_tokens(export: Export) -> None:
    bundle = compiled("smollm2", "fp32")
    assert export(bundle).code == 0
    page = (Path(__file__).parents[3] / "docs" / "onnx.md").read_text()
    (loop,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, list[int]] = {}
    exec(loop.replace("BUNDLE/", f"{bundle}/"), names)
    prompt, text = len(names["ids"]), names["text"]
    assert len(text) == prompt + 60
    likely = check.reference_logits(Parameters.of(open_bundle(bundle)), text).argmax(-1).tolist()
    assert text[prompt:] == likely[prompt - 1 : -1]


def test_json_says_what_was_compared(export: Export, tmp_path: Path) -> None:
    done = export(compiled("smollm2", "bf16"), "-o", "small.onnx", "--weights", "bf16", "--json")
    facts = json.loads(done.out)
    compared = facts.pop("compared")
    assert facts == {"path": "small.onnx", "data": "small.onnx.data", "weights": "bf16"}
    assert compared["rows"] == 12
    assert compared["difference"] <= 0.05 * compared["largest"]


def test_an_older_model_is_replaced_only_when_asked(export: Export, tmp_path: Path) -> None:
    (tmp_path / "model.onnx.data").write_bytes(b"mine")
    done = export(compiled("smollm2", "bf16"), "--no-check")
    assert done.code == 2
    assert done.err == "error: -o model.onnx: model.onnx.data exists; give another name or --replace\n"
    assert (tmp_path / "model.onnx.data").read_bytes() == b"mine"
    done = export(compiled("smollm2", "bf16"), "--no-check", "--replace")
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "model.onnx.data").stat().st_size > 100_000


def test_a_model_that_fails_its_check_is_not_left_behind(
    export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "runtime_logits", lambda path, ids: np.zeros((len(ids), VOCAB_SIZE), np.float32))
    done = export(compiled("smollm2", "bf16"))
    assert done.code == 1
    assert done.err.startswith("error: model.onnx: logits by ONNX Runtime are up to ")
    assert files(tmp_path) == set()
    assert export(compiled("smollm2", "bf16"), "--no-check").code == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["-o", "nowhere/model.onnx"], "-o nowhere/model.onnx: there is no folder nowhere; make it first"),
        (["-o", "."], "Invalid value for '-o' / '--output': File '.' is a directory."),
        (["-o", ""], "-o is empty; give the name of a file, such as model.onnx"),
        (["--weights", "fp16"], "Invalid value for '--weights': 'fp16' is not one of 'fp32', 'bf16'."),
    ],
)
def test_impossible_wishes_are_refused(export: Export, arguments: list[str], line: str) -> None:
    done = export(compiled("smollm2", "bf16"), *arguments)
    assert done.code == 2
    assert done.err.startswith(f"error: {line}")


def test_weights_are_never_rounded_on_the_way_out(export: Export) -> None:
    bundle = compiled("smollm2", "fp32")
    done = export(bundle, "--weights", "bf16")
    assert done.code == 2
    assert done.err == f"error: --weights bf16: {bundle} is fp32, which bf16 would round; use fp32\n"


def test_a_bundle_is_never_written_into(export: Export) -> None:
    bundle = compiled("smollm2", "bf16")
    done = export(bundle, "-o", bundle / "model.onnx")
    assert done.code == 2
    assert "a bundle with another file in it is refused; write beside it" in done.err


def test_damaged_weights_are_refused(export: Export, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(compiled("smollm2", "bf16"), tmp_path / "damaged"))
    weights = bundle / "weights.safetensors"
    weights.chmod(0o644)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    done = export(bundle)
    assert done.code == 1
    assert done.err.startswith("error: weights.safetensors: sha256 ")
    assert files(tmp_path) == {"damaged"}


@pytest.mark.parametrize("module", ["onnx", "torch"])
def test_a_missing_package_is_named_with_its_extra(
    export: Export, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    without(module, monkeypatch)
    done = export(compiled("smollm2", "bf16"))
    assert done.code == 2
    assert f"export-onnx needs {module}, which is not installed: pip install 'tandem-llm[onnx]'" in done.err


def test_without_onnx_runtime_only_the_rules_are_checked(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    without("onnxruntime", monkeypatch)
    done = export(compiled("smollm2", "bf16"))
    assert done.code == 0
    assert done.err == "valid ONNX; logits were not compared: pip install 'tandem-llm[onnx]'\n"


def without(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def find(name: str) -> ModuleSpec | None:
        return None if name == module else found(name)

    monkeypatch.setattr("tandem.compile.onnx.command.find_spec", find)
