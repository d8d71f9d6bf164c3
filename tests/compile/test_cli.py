"""`tandem-compile` in this process: plans, reuse, replacement, and one line for everything that cannot be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.artifacts.reader import open_bundle
from tandem.command import run_command
from tandem.compile.cli import command, default_name
from tandem.compile.cpu import panels, target
from tandem.compile.gate.limits import record
from tests.compile.conftest import Proving
from tests.compile.gate.sample import figures
from tests.tiny import make_checkpoint


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The only line of stderr, less its `error: `."""
        (line,) = self.err.strip().splitlines()
        assert line.startswith("error: ") and self.out == ""
        return line.removeprefix("error: ")


Compile = Callable[..., Done]


@pytest.fixture
def compile_(
    capfd: pytest.CaptureFixture[str], quick: Proving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Compile:
    """Runs the command in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def run(*arguments: object) -> Done:
        capfd.readouterr()
        code = run_command(command, "tandem-compile", [str(argument) for argument in arguments])
        return Done(code, *capfd.readouterr())

    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("cli") / "Tiny Llama", "llama")


def here() -> list[str]:
    return sorted(os.listdir())


def stamps(bundle: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_ino, p.stat().st_mtime_ns) for p in [bundle, *bundle.rglob("*")]}


def test_a_dry_run_prints_the_plan_and_writes_nothing(compile_: Compile, model: Path, quick: Proving) -> None:
    done = compile_(model, "--dry-run", "--profile", "fp32", "--max-seq-len", 500, "--json")
    plan = json.loads(done.out)
    assert (done.code, done.err, here(), quick.calls) == (0, "", [], 0)
    assert (plan["name"], plan["profile"], plan["context_length"]) == ("Tiny-Llama", "fp32", 500)
    assert plan["entries"] == ["extend", "verify-chain", "verify-tree", "commit"]
    text = compile_(model, "--dry-run").out
    assert "entries               extend, verify-chain, verify-tree, commit\n" in text and text.count("\n") == len(plan)
    assert [line.split("  ")[0] for line in text.splitlines()] == list(plan), "names stand apart from what they name"


def test_the_bundle_is_called_after_model_and_profile(compile_: Compile, model: Path) -> None:
    done = compile_(model)
    assert (done.code, done.out, here()) == (0, "Tiny-Llama-bf16\n", ["Tiny-Llama-bf16"])
    assert done.err.startswith(f"{model} as bf16 for cpu-") and "3 comparisons, no bit differs" in done.err
    assert open_bundle("Tiny-Llama-bf16").manifest.name == "Tiny-Llama"
    done = compile_(model, "--name", "org/mine", "--profile", "fp32", "--quiet", "--json")
    facts, manifest = json.loads(done.out), open_bundle("mine-fp32").manifest
    assert manifest.name == "org/mine"
    assert (done.code, done.err) == (0, "")
    assert (facts["path"], facts["build_id"], facts["content_id"]) == (
        "mine-fp32", manifest.build_id, manifest.content_id
    )  # fmt: skip


def test_quality_is_said_and_accepted_in_words(
    compile_: Compile, model: Path, quick: Proving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "measure_quality", lambda *_: record(figures(prose=2.2)))
    wish = (model, "--profile", "int8", "-o", "b")
    assert "int8 costs too much quality: loss on prose rises by 0.2000 nats" in compile_(*wish).line and here() == []
    done = compile_(*wish, "--accept-quality", "--json")
    assert "quality NOT within its limits: loss +0.2000 on prose, +0.0000 on code" in done.err
    assert json.loads(done.out)["quality"]["held"] is False
    # What stands there is refused like what would be built, and is not built again.
    assert "costs too much quality" in compile_(*wish).line
    assert compile_(*wish, "--accept-quality").code == 0 and quick.calls == 1


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct"),
        ("some/where/SmolLM2.Q4_1.gguf", "SmolLM2.Q4_1"),
        ("a folder/with (odd) näme/", "with-odd-n-me"),
        ("..", "model"),
        ("/", "model"),
        ("-x", "x"),
    ],
)
def test_default_names(path: str, name: str) -> None:
    assert default_name(path) == name


def test_what_is_built_is_not_built_again(compile_: Compile, model: Path, quick: Proving) -> None:
    assert compile_(model, "-o", "b").code == 0
    before = stamps(Path("b"))
    for flags in ((), ("--replace",)):
        done = compile_(model, "-o", "b", *flags)
        assert (done.code, done.out, done.err) == (0, "b\n", "b is this very build already\n")
    assert json.loads(compile_(model, "-o", "b", "--json").out)["build_id"] == open_bundle("b").manifest.build_id
    assert stamps(Path("b")) == before and quick.calls == 1 and here() == ["b"]


@pytest.mark.parametrize("wish", [("--profile", "fp32"), ("--max-seq-len", 128), ("--name", "another")])
def test_another_build_is_replaced_only_when_asked(compile_: Compile, model: Path, wish: tuple[object, ...]) -> None:
    compile_(model, "-o", "b")
    before = stamps(Path("b"))
    done = compile_(model, "-o", "b", *wish)
    assert done.code == 2 and done.line.startswith(f"{Path('b').resolve()} exists; ")
    assert stamps(Path("b")) == before and here() == ["b"]
    assert compile_(model, "-o", "b", *wish, "--replace").code == 0
    assert stamps(Path("b")) != before and here() == ["b"]
    open_bundle("b").verify()


def test_a_bundle_from_elsewhere_is_not_taken_for_ours(
    compile_: Compile, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same build, but its native code was sealed with another key: `tandem-run` would refuse it."""
    compile_(model, "-o", "b")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert "exists" in compile_(model, "-o", "b").line
    assert compile_(model, "-o", "b", "--replace").code == 0
    assert open_bundle("b").library_path.is_file()


@pytest.mark.parametrize("spoil", ["manifest.json", "prices.json"])
def test_a_damaged_bundle_is_built_again(compile_: Compile, model: Path, quick: Proving, spoil: str) -> None:
    compile_(model, "-o", "b")
    path = Path("b") / spoil
    path.chmod(0o644)
    path.write_bytes(b"{}")
    assert "exists" in compile_(model, "-o", "b").line
    assert compile_(model, "-o", "b", "--replace").code == 0 and quick.calls == 2
    open_bundle("b").verify()


def test_other_folders_and_files_are_never_replaced(compile_: Compile, model: Path) -> None:
    Path("files").mkdir()
    Path("files/letter").write_text("dear")
    Path("file").write_text("x")
    Path("link").symlink_to("files")
    for name in ("files", "file", "link"):
        assert compile_(model, "-o", name, "--replace").code == 2, name
    assert here() == ["file", "files", "link"] and Path("files/letter").read_text() == "dear"


def edited(model: Path, folder: Path, **changes: Any) -> Path:
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--accept-quality",), "--accept-quality: profile bf16 has no quality gate; leave it out"),
        (("--profile", "int3"), "unknown profile int3: this build knows fp32, bf16"),
        (("--device", "tpu"), "--device tpu: this build knows cpu, cpu-x86-64-v2, "),
        (
            ("--device", "cuda"),
            "--device cuda: no GPU is in sight here, so entries cannot be proved; compile on a",
        ),
        (("--device", "cuda-sm90"), "--device cuda-sm90: no GPU is in sight here"),
        (("--max-seq-len", "5000"), "--max-seq-len 5000: for this model it may be 64 to 2048"),
        (("--max-seq-len", "many"), "'many' is not a valid integer"),
        (("--speed", "11"), "--speed"),
    ],
)
def test_impossible_wishes(compile_: Compile, model: Path, flags: tuple[str, ...], line: str) -> None:
    done = compile_(model, *flags)
    assert done.code == 2 and line in done.line and here() == []


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architectures": ["BertModel"], "model_type": "bert"}, "BertModel"),
    "rope": ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
    "shape": ({"intermediate_size": 113}, "shape"),
    "layers": ({"num_hidden_layers": 4}, "model.layers.3."),
    "heads": ({"num_attention_heads": 5, "head_dim": None}, "head_dim = 9"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_models_that_cannot_be_built(compile_: Compile, model: Path, tmp_path: Path, change: str) -> None:
    fields, word = CHANGES[change]
    done = compile_(edited(model, tmp_path / "model", **fields), "-o", "b")
    assert done.code == 1 and word in done.line and here() == []


def test_tensors_that_do_not_fit(compile_: Compile, model: Path, tmp_path: Path) -> None:
    wrong, file = shutil.copytree(model, tmp_path / "wrong"), "model.safetensors"
    missing, norm = "model.layers.1.mlp.up_proj.weight", "model.layers.2.input_layernorm.weight"
    tensors = load_file(model / file)
    save_file({name: tensor for name, tensor in tensors.items() if name != missing}, wrong / file)
    assert f"lacks {missing}; fetch it again" in (line := compile_(wrong).line)
    assert compile_(wrong, "--dry-run").line == line
    tensors[norm][5] = torch.nan
    save_file(tensors, wrong / file)
    assert f"{norm} has 1 values of 48 that are NaN, infinite or too" in compile_(wrong, "-q").line and here() == []


def test_damaged_checkpoints(compile_: Compile, model: Path, tmp_path: Path) -> None:
    sharded = make_checkpoint(tmp_path / "sharded", "llama", shards=3)
    (sharded / "model-00002-of-00003.safetensors").unlink()
    done = compile_(sharded, "-o", "b")
    assert done.code == 1 and "model-00002-of-00003.safetensors" in done.line
    short = shutil.copytree(model, tmp_path / "short")
    os.truncate(short / "model.safetensors", (short / "model.safetensors").stat().st_size - 100)
    done = compile_(short, "-o", "b")
    assert done.code == 1 and "model.safetensors" in done.line
    assert compile_("", "-o", "b").line.startswith("MODEL is empty")
    done = compile_(tmp_path / "none", "-o", "b")
    assert done.code in (1, 2) and "none" in done.line and here() == []


@pytest.mark.parametrize("cxx", ["/bin/false", "no-such-compiler"])
def test_compilers_that_do_not_work(compile_: Compile, model: Path, monkeypatch: pytest.MonkeyPatch, cxx: str) -> None:
    monkeypatch.setenv("CXX", cxx)
    done = compile_(model, "-o", "b")
    assert done.code == 1 and cxx in done.line and "set CXX" in done.line and here() == []


def test_no_compiler(compile_: Compile, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    done = compile_(model, "-o", "b")
    assert done.code == 1 and done.line.startswith("no C++ compiler found: install g++") and here() == []


def test_an_output_folder_that_cannot_be_written(compile_: Compile, model: Path) -> None:
    Path("file").write_text("x")
    done = compile_(model, "-o", "file/b")
    assert done.code == 2 and "file/b: no folder can be made there" in done.line and here() == ["file"]
    if os.geteuid() == 0:
        return
    Path("locked").mkdir(mode=0o555)
    done = compile_(model, "-o", "locked/b")
    assert done.code == 2 and "(Permission denied); choose another place" in done.line


def test_ctrl_c_while_weights_are_written(compile_: Compile, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[object]()

    def interrupted(weight: Any, matrix: Any) -> Any:
        written.append(weight)
        if len(written) == 5:
            assert [name[:11] for name in here()] == [".b.partial-"]
            raise KeyboardInterrupt
        return pack(weight, matrix)

    pack = panels.pack
    monkeypatch.setattr(panels, "pack", interrupted)
    done = compile_(model, "-o", "b")
    assert (done.code, done.line, here()) == (130, "interrupted", [])
