"""The two commands as they are typed: a corpus from packages, then a run that stops and goes on, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from tandem.command import run_command
from tandem.compile.models.families import resolve
from tandem.compile.models.weights import load_mtp
from tandem.compile.train import cli, corpus, documents, loop, packages, run
from tandem.compile.train.evaluate import held_out, write
from tandem.compile.train.model import Model
from tests.compile.models.oracle import read_config, read_tensors
from tests.compile.train.test_corpus import source, wheel


@pytest.fixture
def places(tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a corpus of two packages and a config."""
    root, library = tmp_path / "archives", tmp_path / "library"
    root.mkdir()
    library.mkdir()
    (library / "words.py").write_text(source(700))
    wheel(root, "alpha", {f"alpha/m{i}.py": source(i) for i in range(60)})
    monkeypatch.setattr(documents, "HELD_OUT_PERMILLE", {"stdlib": 0, "packages": 200, "docs": 0})
    monkeypatch.setattr(
        packages, "standard_library", lambda: packages.folder("python-library", "3", "PSF-2.0", library)
    )
    (tmp_path / "config.json").write_text(json.dumps(tiny))
    options = ["--archives", str(root), "--vocab-size", "400", "-o", str(tmp_path / "corpus")]
    assert call("corpus", *options) == 0
    return tmp_path


def call(*arguments: str) -> int:
    return run_command(cli.group, "python -m tandem.compile.train", arguments)


def train(places: Path, *more: str) -> int:
    folders = {"corpus": "corpus", "state": "run.pt", "output": "model", "config": "config.json"}
    options = [word for name, file in folders.items() for word in (f"--{name}", str(places / file))]
    sizes = ["--steps", "4", "--batch", "2", "--context", "32", "--warmup", "2", "--seed", "3"]
    return call("run", *options, *sizes, *more)


def test_a_run_that_stops_and_goes_on(
    places: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "REPORT_EVERY", 2)
    monkeypatch.setattr(run, "SAMPLE_TOKENS", 5)
    assert train(places, "--stop-after", "0") == 0
    stopped = capsys.readouterr()
    assert stopped.out.splitlines()[-1] == str(places / "model")
    assert "stopped at step 2 of 4: the same command goes on" in stopped.err
    assert "(stopped early, of 4)" in (places / "model/README.md").read_text()
    assert train(places) == 0
    assert "stopped" not in capsys.readouterr().err

    model = places / "model"
    spec = resolve(read_config(model))
    assert (spec.family, spec.vocab_size) == ("qwen3_5", 400)
    assert len(list(load_mtp(spec, read_tensors(model)))) == 13  # type: ignore[arg-type]
    assert all(tensor.dtype == torch.bfloat16 for tensor in load_file(model / "model.safetensors").values())
    assert (model / "tokenizer.json").read_bytes() == (places / "corpus/tokenizer.json").read_bytes()
    card = (model / "README.md").read_text()
    for line in ("| alpha | 1.2 | MIT |", "| python-library | 3 | PSF-2.0 | 1 |", "| packages |", "def fibonacci(n):"):
        assert line in card
    assert max(map(len, card.split("\n## Data\n")[1].splitlines()[:4])) <= 120
    assert card.endswith(
        "```\n\nThe last command of the run. Where `--stop-after` ended one before it, this one went on from there.\n"
    )
    assert Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab_size() == 400


def test_the_chat_template_writes_what_was_trained_on(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    monkeypatch.setattr(run, "SAMPLE_TOKENS", 1)
    assert train(places) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(places / "model")
    turns = [{"role": "user", "content": "Add two numbers."}]
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(ids) == "<|im_start|>user\nAdd two numbers.<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--context", "300"], "windows of 300 tokens are longer than the config's max_position_embeddings = 256"),
        (["--batch", "4000"], "training tokens are less than one batch of 4000 x 32"),
    ],
)
def test_what_cannot_be_run_is_said(
    places: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(places, *options) == 2
    assert message in capsys.readouterr().err


def test_scores_are_those_of_a_model_that_knows_nothing(places: Path, tiny: dict[str, Any]) -> None:
    text = corpus.read_corpus(places / "corpus")
    model = Model(resolve(run.complete(tiny, 400)))  # type: ignore[arg-type]
    with torch.no_grad():
        model.head_weight.zero_()  # every token as likely as any other
    scores = held_out(model, text.held_out, text.facts["held_out_bytes"], length=32, batch=3, draft_depth=2)
    assert set(scores) == {"packages", "chat"}
    score, ids = scores["packages"], text.held_out["packages"]
    assert score.loss == pytest.approx(torch.tensor(400.0).log().item(), abs=1e-5)
    assert score.tokens == (len(ids) - 3) // 32 * 32
    told = len(ids) / text.facts["held_out_bytes"]["packages"]
    assert score.bits_per_byte == pytest.approx(torch.tensor(400.0).log2().item() * told, rel=1e-5)
    assert len(score.draft_accuracy) == 2


def test_writing_ends_at_a_stop_id(tiny: dict[str, Any]) -> None:
    model = Model(resolve(run.complete(tiny, 400)))  # type: ignore[arg-type]
    with torch.no_grad():
        model.head_weight.zero_()  # of equal logits the first is taken
    assert write(model, [5, 6], max_tokens=4, stop_ids=frozenset({0})) == [0]
    assert write(model, [5, 6], max_tokens=4, stop_ids=frozenset({1})) == [0, 0, 0, 0]
