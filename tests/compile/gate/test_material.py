"""What the gate reads, by the checkpoint's own tokenizer: windows, prompts, and checkpoints that do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.gate import material
from tandem.compile.gate.material import make_material, windows
from tandem.errors import CheckpointError
from tests.tiny import CHAT_TEMPLATE, VOCAB_SIZE, tokenizer_json

FOLDER = Path(material.__file__).parent


@dataclass
class Fake:
    """The text side of a checkpoint."""

    chat_template: str | None = CHAT_TEMPLATE
    tokenizer_json: str = tokenizer_json()
    bos_token: str | None = "<|im_start|>"
    eos_token: str | None = "<|im_end|>"
    origin: str = "fake"


def text_of(ids: list[int]) -> str:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(tokenizer_json()).decode(ids, skip_special_tokens=False)


@given(st.integers(2, 5000), st.integers(64, 4096))
def test_windows_predict_each_token_once(count: int, context: int) -> None:
    ids = list(range(count))
    cut = windows(ids, context)
    assert [token for window in cut for token in window[1:]] == ids[1:2049]
    assert all(window[-1] == after[0] for window, after in pairwise(cut))
    assert all(2 <= len(window) <= context + 1 for window in cut)


def test_the_texts_are_ours_and_long_enough() -> None:
    found = make_material(Fake(), 8192, VOCAB_SIZE)  # type: ignore[arg-type]
    assert found.texts.keys() == {"prose", "code"} and found.answer_tokens == 128
    for name, cut in found.texts.items():
        assert [len(window) for window in cut] == [2049]
        assert (FOLDER / f"{name}.txt").read_text().startswith(text_of(cut[0])[:500])
    assert len((FOLDER / "prose.txt").read_text().split()) > 1700


def test_prompts_are_chats_that_leave_room_for_an_answer() -> None:
    questions = (FOLDER / "prompts.txt").read_text().splitlines()
    found = make_material(Fake(), 8192, VOCAB_SIZE).prompts  # type: ignore[arg-type]
    assert [text_of(ids) for ids in found] == [
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in questions
    ]
    short = make_material(Fake(), 64, VOCAB_SIZE)  # type: ignore[arg-type]
    assert short.answer_tokens == 32 and [len(ids) for ids in short.prompts] == [32] * 8
    assert [ids[-32:] for ids in found] == short.prompts


@pytest.mark.parametrize(
    "template", [None, "{{ raise_exception('no user') }}", "{% if %}", "{{ messages[3].content }}"]
)
def test_prompts_are_bare_where_no_template_takes_them(template: str | None) -> None:
    questions = (FOLDER / "prompts.txt").read_text().splitlines()
    found = make_material(Fake(template), 8192, VOCAB_SIZE)  # type: ignore[arg-type]
    assert [text_of(ids) for ids in found.prompts] == questions


def test_a_tokenizer_of_another_model_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"fake: the tokenizer gives id \d+, but the model knows 100"):
        make_material(Fake(), 256, 100)  # type: ignore[arg-type]


@pytest.mark.smollm2
def test_a_large_vocabulary_still_fills_the_texts(smollm2_gguf: Path) -> None:
    found = make_material(open_checkpoint(str(smollm2_gguf)), 8192, 49152)
    assert [len(cut[0]) for cut in found.texts.values()] == [2049, 2049]
