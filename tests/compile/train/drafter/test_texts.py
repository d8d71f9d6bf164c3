"""Given text and prompts: which files they are from, how a question is put, what a masked row stands on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.train import documents, packages
from tandem.compile.train.chat import exchanges
from tandem.compile.train.documents import Collector
from tandem.compile.train.drafter.texts import CODE, PROMPT_TOKENS, Texts, ask, read_texts, unseen_id
from tandem.errors import CheckpointError, UsageError
from tests.compile.train.test_corpus import source
from tests.tiny import make_checkpoint


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> packages.Package:
    folder = tmp_path / "library"
    folder.mkdir()
    for number in range(12):
        (folder / f"words{number}.py").write_text(source(number))
    monkeypatch.setattr(documents, "HELD_OUT_PERMILLE", {"stdlib": 300, "packages": 300, "docs": 300})
    return packages.folder("python-library", "3", "PSF-2.0", folder)


def read(folder: Path, library: packages.Package, longest: int = 400) -> Texts:
    return read_texts(open_checkpoint(str(folder)), [library], package_bytes=100_000, longest=longest)


def test_held_out_prompts_are_of_other_files(tmp_path: Path, library: packages.Package) -> None:
    make_checkpoint(tmp_path / "target", "llama")
    texts, checkpoint = read(tmp_path / "target", library), open_checkpoint(str(tmp_path / "target"))
    words = Tokenizer.from_str(checkpoint.tokenizer_json)
    found = list(Collector(100_000).collect([library]))
    assert {document.held_out for document in found} == {True, False}
    assert words.decode(texts.given) == "".join(d.text for d in found if not d.held_out)
    for held, prompts in ((True, texts.held_out), (False, texts.prompts)):
        mine = [document for document in found if document.held_out == held]
        assert len(prompts[CODE]) == 2 * len(mine)
        for prompt in prompts[CODE]:
            assert len(prompt) == PROMPT_TOKENS and any(words.decode(prompt) in document.text for document in mine)
        questions = [question for document in mine for question, _ in exchanges(document)]
        shown = [words.decode(prompt, skip_special_tokens=False) for prompt in prompts["chat"]]
        assert shown == [ask(checkpoint, question) for question in questions]


def test_a_question_is_put_as_transformers_puts_it(tmp_path: Path) -> None:
    import transformers

    make_checkpoint(tmp_path, "llama")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    turns = [{"role": "user", "content": "What is <|im_end|> for?"}]
    wanted = theirs.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert ask(open_checkpoint(str(tmp_path)), turns[0]["content"]) == wanted


def test_prompts_are_no_longer_than_asked_and_begin_as_texts_do(tmp_path: Path, library: packages.Package) -> None:
    make_checkpoint(tmp_path / "target", "llama")
    path = tmp_path / "target/tokenizer.json"
    words = Tokenizer.from_file(str(path))
    words.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    words.save(str(path))
    texts = read(tmp_path / "target", library, longest=20)
    assert {len(prompt) for prompt in texts.prompts[CODE]} == {20} and not texts.prompts["chat"]
    assert {int(prompt[0]) for prompt in texts.prompts[CODE]} == {1}
    assert 1 not in texts.given


def test_without_a_template_there_is_no_chat(tmp_path: Path, library: packages.Package) -> None:
    make_checkpoint(tmp_path / "target", "llama")
    for file in ("chat_template.jinja", "tokenizer_config.json"):
        path = tmp_path / "target" / file
        if path.suffix == ".json":
            path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": None}))
        else:
            path.unlink(missing_ok=True)
    assert not read(tmp_path / "target", library).prompts["chat"]


def test_a_template_that_cannot_be_filled_in_is_said(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")
    checkpoint = open_checkpoint(str(tmp_path))
    checkpoint.chat_template = "{{ raise_exception('no') }}"
    with pytest.raises(CheckpointError, match="its chat template cannot be filled in"):
        ask(checkpoint, "why")


def test_too_little_text_is_said(tmp_path: Path, library: packages.Package, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path / "target", "llama")
    monkeypatch.setattr(documents, "HELD_OUT_PERMILLE", {"stdlib": 0, "packages": 0, "docs": 0})
    with pytest.raises(UsageError, match="no text to learn from or none to hold out"):
        read(tmp_path / "target", library)


def test_a_masked_row_stands_on_what_is_seen_least() -> None:
    texts = Texts(np.array([0, 1, 2, 5, 5, 4]), {CODE: [np.array([3])]}, {})
    assert unseen_id(texts, 8) == 7
    assert unseen_id(texts, 6) == 4  # of those seen once the highest
