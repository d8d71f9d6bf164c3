"""Tokenizer facts of folders: stop ids from every place that may name them, chat templates in every form."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from tandem.compile.checkpoints.hf import HfCheckpoint
from tandem.compile.checkpoints.tokenizer import token_ids, token_text
from tests.tiny import CHAT_TEMPLATE, make_checkpoint


@pytest.fixture(scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tokenizer"), "llama")


@pytest.fixture
def folder(_made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_made, tmp_path / "folder"))


def _update(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields), encoding="utf-8")


@pytest.mark.parametrize(
    ("generation", "config", "eos_token", "wanted"),
    [
        (2, 2, "<|im_end|>", (0, 2)),
        ([5, 9], None, None, (0, 2, 5, 9)),
        (None, [7], {"content": "a", "lstrip": False}, None),
        (None, None, "no such token", (0, 2)),
    ],
)
def test_stop_ids_are_a_union(
    folder: Path, generation: Any, config: Any, eos_token: Any, wanted: tuple[int, ...] | None
) -> None:
    _update(folder / "generation_config.json", eos_token_id=generation)
    _update(folder / "config.json", eos_token_id=config)
    _update(folder / "tokenizer_config.json", eos_token=eos_token)
    a_id = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("a")
    assert HfCheckpoint(folder).stop_ids == (wanted or tuple(sorted({0, 2, 7, a_id})))


def test_an_end_token_that_is_no_special_token_does_not_stop(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    for token in tokenizer["added_tokens"]:
        token["special"] = token["content"] != "<|endoftext|>"
    _update(folder / "tokenizer.json", added_tokens=tokenizer["added_tokens"])
    assert HfCheckpoint(folder).stop_ids == (2,)


def test_a_folder_without_generation_or_tokenizer_config(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    checkpoint = HfCheckpoint(folder)
    assert (checkpoint.chat_template, checkpoint.bos_token, checkpoint.eos_token) == (None, None, None)
    assert checkpoint.stop_ids == (0, 2)


def test_older_folders_name_tokens_in_special_tokens_map(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "special_tokens_map.json").write_text('{"bos_token": {"content": "<|im_start|>"}, "eos_token": "a"}')
    checkpoint = HfCheckpoint(folder)
    assert (checkpoint.bos_token, checkpoint.eos_token) == ("<|im_start|>", "a")


def test_chat_templates_in_every_form(folder: Path) -> None:
    assert HfCheckpoint(folder).chat_template == CHAT_TEMPLATE
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    _update(folder / "tokenizer_config.json", chat_template=named)
    assert HfCheckpoint(folder).chat_template == "plain"
    _update(folder / "tokenizer_config.json", chat_template=named[:1])
    assert HfCheckpoint(folder).chat_template is None
    (folder / "chat_template.jinja").write_text("from a file: é")
    assert HfCheckpoint(folder).chat_template == "from a file: é"
    assert AutoTokenizer.from_pretrained(folder).chat_template == "from a file: é"


def test_the_tokenizer_is_passed_on_unchanged(folder: Path) -> None:
    assert HfCheckpoint(folder).tokenizer_json == (folder / "tokenizer.json").read_text(encoding="utf-8")


def test_fields_as_configs_write_them() -> None:
    assert [token_ids(value) for value in (None, 3, [3, 4], "3", [None], [True])] == [[], [3], [3, 4], [], [], []]
    assert [token_text(value) for value in (None, "a", {"content": "b"}, {}, 3)] == [None, "a", "b", None, None]
