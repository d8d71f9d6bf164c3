"""The demo hybrid as it is shipped: a whole model of its family, small enough, with a card, that writes code."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from safetensors import safe_open

import bundles
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.models.families import resolve
from tandem.compile.models.spec import LINEAR_ATTENTION, HybridSpec
from tandem.compile.train.run import PROMPTS
from tandem.compile.train.tokenizer import SPECIAL_TOKENS

MAX_WEIGHT_BYTES = 30_000_000


def test_it_is_a_whole_hybrid_with_a_drafting_layer() -> None:
    checkpoint = open_checkpoint(str(bundles.HYBRID))
    spec = resolve(checkpoint.config)
    assert isinstance(spec, HybridSpec)
    recurrent = [kind == LINEAR_ATTENTION for kind in spec.layer_types]
    assert sum(recurrent) == 3 * (len(recurrent) - sum(recurrent))
    weights = bundles.HYBRID / "model.safetensors"
    assert weights.stat().st_size <= MAX_WEIGHT_BYTES
    with safe_open(weights, "numpy") as file:
        names = set(file.keys())
        assert {file.get_slice(name).get_dtype() for name in names} == {"BF16"}
    assert {name.split(".")[0] for name in names} == {"model", "mtp"}


def test_its_tokenizer_has_a_token_for_every_id_and_gives_text_back() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(bundles.HYBRID / "tokenizer.json"))
    config = json.loads((bundles.HYBRID / "config.json").read_text())
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2]
    source = Path(__file__).read_text()
    assert tokenizer.decode(tokenizer.encode(source, add_special_tokens=False).ids) == source


def test_its_card_tells_data_licences_training_and_worth() -> None:
    card = (bundles.HYBRID / "README.md").read_text()
    assert card.startswith("---\nlicense: apache-2.0\n")
    for title in ("Model", "Training", "Held-out text", "What it writes", "Data", "Command"):
        assert f"\n## {title}\n" in card
    for domain in ("stdlib", "packages", "docs", "chat"):
        assert f"\n| {domain} |" in card
    assert "python-library" in card
    assert "python -m tandem.compile.train run" in card


def test_it_goes_on_with_python_that_parses() -> None:
    """Transformers writes; a whole number of lines behind those of the prompt must be Python."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    prompt = PROMPTS[2]
    tokenizer = AutoTokenizer.from_pretrained(bundles.HYBRID)
    model = AutoModelForCausalLM.from_pretrained(bundles.HYBRID, dtype=torch.float32).eval()
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        found = model.generate(**ids, max_new_tokens=48, do_sample=False)
    text = tokenizer.decode(found[0], skip_special_tokens=True)
    assert text.startswith(prompt)
    lines, given = text.splitlines(), len(prompt.splitlines())
    assert any(_parses("\n".join(lines[:end])) for end in range(given + 1, len(lines) + 1)), text


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True
