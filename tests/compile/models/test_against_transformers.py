"""Every family against Transformers in float64, and every way to run rows against the whole text at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tandem.compile.models.reference import ReferenceModel
from tandem.tree import DraftTree
from tests.compile.models import oracle
from tests.tiny import FAMILIES, HYBRIDS, VOCAB_SIZE, make_checkpoint

LENGTHS = (1, 3, 64, 65, 200)
VARIANTS = {
    "llama-bias": ("llama", {"attention_bias": True}),
    "qwen3-bias": ("qwen3", {"attention_bias": True, "num_key_value_heads": 1}),
    "mistral-window": ("mistral", {"sliding_window": 2048}),
    "qwen3_5-yarn": (
        "qwen3_5",
        {
            "rope": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
                "partial_rotary_factor": 0.5,
            }
        },
    ),
    "qwen2-one-layer": ("qwen2", {"num_hidden_layers": 1, "tie_word_embeddings": False}),
}

SHAPES = ("llama-yarn", "mistral", "qwen2", "qwen3", *HYBRIDS, "qwen3_5-yarn", "qwen3-bias")
"""Those whose layers or heads are not another's: rows pass through the others alike."""


def checkpoint(folder: Path, name: str) -> Path:
    family, overrides = VARIANTS.get(name, (name, {}))
    return make_checkpoint(folder / name, family, **overrides)


def text(length: int, seed: int = 1) -> list[int]:
    return torch.randint(VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-9) -> None:
    assert found.dtype == wanted.dtype == torch.float64
    assert (found - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.fixture(scope="module", params=(*FAMILIES, *HYBRIDS, *VARIANTS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("tiny"), request.param)


@pytest.fixture(scope="module")
def ours(folder: Path) -> ReferenceModel:
    return oracle.reference(folder, context_length=256)


def test_float64_logits_are_those_of_transformers(folder: Path, ours: ReferenceModel) -> None:
    theirs = oracle.transformers_model(folder)
    cos, sin = ours.cos, ours.sin
    # The tables have their own test: here both sides turn by the same angles.
    ours.cos, ours.sin = oracle.tables(theirs, cos.shape[0])
    for length in LENGTHS:
        ids = text(length)
        close(ours.forward(ids), oracle.logits(theirs, ids))
    ours.cos, ours.sin = cos, sin


def test_float32_error_is_at_most_twice_that_of_transformers(folder: Path) -> None:
    """Each against the float64 run with its own tables, so that the tables' precision counts too."""
    ids, exact = text(150), oracle.transformers_model(folder)
    exact.model.rotary_emb.forward = _exact_rotary(oracle.reference(folder))
    wanted = oracle.logits(exact, ids)
    theirs = oracle.logits(oracle.transformers_model(folder, torch.float32), ids)
    ours = oracle.reference(folder, torch.float32).forward(ids)
    assert ours.dtype == torch.float32
    assert (ours - wanted).abs().mean() <= 2 * (theirs - wanted).abs().mean()
    assert (ours - wanted).abs().max() <= 1e-4 * wanted.abs().max()


def _exact_rotary(ours: ReferenceModel):  # type: ignore[no-untyped-def]
    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # qwen3_5 has a position for each of three axes, which are equal in text.
        position_ids = position_ids.reshape(-1, position_ids.shape[-1])[:1]
        both = (torch.cat((table, table), dim=-1)[position_ids].to(x.dtype) for table in (ours.cos, ours.sin))
        return tuple(both)  # type: ignore[return-value]

    return forward


@pytest.mark.parametrize("folder", SHAPES, indirect=True)
def test_chunks_of_any_size_equal_the_whole(ours: ReferenceModel) -> None:
    ids = text(40)
    whole = ours.forward(ids)
    for size in (1, 7, 16, 33):
        ours.length = 0
        chunks = [ours.extend(ids[start : start + size]) for start in range(0, len(ids), size)]
        close(torch.cat(chunks), whole, 1e-12)


@pytest.mark.parametrize("folder", SHAPES, indirect=True)
def test_tree_rows_equal_the_text_of_their_path(ours: ReferenceModel) -> None:
    prompt, tokens = text(37), text(12, seed=2)
    tree = DraftTree(tokens, [-1, 0, 1, 1, 3, 0, 5, 5, 7, 8, 0, 10], [1.0] * 12, ["test"] * 12)
    ours.forward(prompt)
    found = ours.verify(tree)
    assert ours.length == len(prompt)
    for node in range(len(tree)):
        path = [tokens[i] for i in tree.path(node)]
        close(found[node], ours.forward(prompt + path)[-1], 1e-12)


def test_a_committed_path_goes_on_as_if_it_had_been_text(ours: ReferenceModel) -> None:
    prompt, tokens, more = text(30), text(9, seed=2), text(5, seed=3)
    tree = DraftTree(tokens, [-1, 0, 1, 0, 3, 4, 3, 6, 0], [1.0] * 9, ["test"] * 9)
    path = tree.path(7)
    ours.forward(prompt)
    ours.verify(tree)
    ours.commit(path)
    assert ours.length == len(prompt) + len(path)
    found = ours.extend(more)
    close(found, ours.forward(prompt + [tokens[i] for i in path] + more)[-5:], 1e-12)


def test_greedy_text_is_that_of_transformers(folder: Path) -> None:
    prompt = text(20)
    model = oracle.transformers_model(folder, torch.float32)
    ids = torch.tensor([prompt])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 16, "do_sample": False, "pad_token_id": 2}
    theirs = model.generate(ids, **options, eos_token_id=2)[0, len(prompt) :].tolist()
    assert oracle.reference(folder, torch.float32).greedy(prompt, 16, frozenset({2})) == theirs
