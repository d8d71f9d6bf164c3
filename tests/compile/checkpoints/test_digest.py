"""The digest names content: the same for any place and any sharding, another for any change that matters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.compile.checkpoints.open import open_checkpoint
from tests.tiny import make_checkpoint, make_gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("digest"), "smollm2")


def _digest(path: Path) -> str:
    return open_checkpoint(str(path)).digest()


def test_neither_place_nor_sharding_nor_writer_matters(folder: Path, tmp_path: Path) -> None:
    wanted = _digest(folder)
    assert len(wanted) == 64 and int(wanted, 16) >= 0
    assert _digest(Path(shutil.copytree(folder, tmp_path / "copy"))) == wanted
    for shards in (2, 5):
        assert _digest(make_checkpoint(tmp_path / f"shards-{shards}", "smollm2", shards=shards)) == wanted
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    saved_again = config | {"transformers_version": "4.0.0", "_name_or_path": "elsewhere"}
    (tmp_path / "copy" / "config.json").write_text(json.dumps(dict(reversed(saved_again.items()))))
    assert _digest(tmp_path / "copy") == wanted


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("config.json", "rms_norm_eps", 1e-6),
        ("tokenizer_config.json", "chat_template", "{{ messages }}"),
        ("generation_config.json", "eos_token_id", [2, 7]),
        (
            "tokenizer.json",
            "truncation",
            {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0},
        ),
    ],
)
def test_every_fact_matters(folder: Path, tmp_path: Path, name: str, field: str, value: Any) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    content = json.loads((copy / name).read_text(encoding="utf-8"))
    (copy / name).write_text(json.dumps(content | {field: value}), encoding="utf-8")
    assert _digest(copy) != _digest(folder)


@pytest.mark.parametrize("change", ["one bit", "two tensors swapped", "stored as bf16"])
def test_every_weight_matters(folder: Path, tmp_path: Path, change: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    tensors = load_file(copy / "model.safetensors")
    first, second = "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"
    if change == "one bit":
        tensors[first].view(torch.int32)[-1, -1] ^= 1
    elif change == "two tensors swapped":
        tensors[first], tensors[second] = tensors[second], tensors[first]
    else:
        tensors[first] = tensors[first].bfloat16()
    save_file(tensors, copy / "model.safetensors")
    assert _digest(copy) != _digest(folder)


def test_progress_counts_every_byte(folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    open_checkpoint(str(folder)).digest(lambda done, total: calls.append((done, total)))
    total = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert calls[-1] == (total, total)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_gguf_is_named_by_what_is_stored(folder: Path, tmp_path: Path) -> None:
    digests = [_digest(make_gguf(tmp_path / f"{kind}.gguf", folder, weight_type=kind)) for kind in ("F16", "Q8_0")]
    assert digests[0] != digests[1]
    assert _digest(make_gguf(tmp_path / "again.gguf", folder, weight_type="F16")) == digests[0]
