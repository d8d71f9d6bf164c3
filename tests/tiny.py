"""Tiny random checkpoints for tests: Hugging Face folders of every family, and GGUF files made from them.

Sizes are awkward on purpose. Knows nothing of Tandem: Transformers, safetensors and gguf write everything.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests import tiny_hybrid
from tests.tiny_gguf import make_gguf

__all__ = [
    "CHAT_TEMPLATE",
    "FAMILIES",
    "HYBRIDS",
    "SPECIAL_TOKENS",
    "VOCAB_SIZE",
    "make_checkpoint",
    "make_gguf",
    "tokenizer_json",
]

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
)  # ids 0, 1, 2, as in SmolLM2
VOCAB_SIZE = 333
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_LLAMA = {
    "hidden_size": 48,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 112,
    "rope_theta": 10000.0,
}
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _LLAMA),
    "llama-linear": (
        "Llama",
        _LLAMA | {"rope": {"rope_type": "linear", "factor": 2.5}},
    ),
    "llama-llama3": (
        "Llama",
        _LLAMA
        | {
            "rope": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            }
        },
    ),
    "llama-yarn": (
        "Llama",
        _LLAMA
        | {
            "rope": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
            }
        },
    ),
    # The only one whose rows are all multiples of 32: every GGUF block type fits it.
    "smollm2": (
        "Llama",
        {
            "hidden_size": 96,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "intermediate_size": 160,
            "rope_theta": 100000.0,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
        },
    ),
    "mistral": (
        "Mistral",
        {
            "hidden_size": 80,
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
            "head_dim": 16,
            "intermediate_size": 112,
            "rope_theta": 1e6,
            "sliding_window": None,
        },
    ),
    "qwen2": (
        "Qwen2",
        {
            "hidden_size": 48,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "intermediate_size": 112,
            "rope_theta": 1e6,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3": (
        "Qwen3",
        {
            "hidden_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 20,
            "intermediate_size": 112,
            "rope_theta": 1e6,
        },
    ),
}
FAMILIES = tuple(_MODELS)
HYBRIDS = tuple(tiny_hybrid.MODELS)


def make_checkpoint(
    folder: Path,
    family: str,
    *,
    seed: int = 0,
    shards: int = 1,
    dtype: str = "float32",
    **overrides: Any,
) -> Path:
    """Write a random checkpoint of `family` (of FAMILIES or HYBRIDS) into `folder`, read by Transformers too.

    `overrides` are config fields by their Hugging Face names; `rope=dict(rope_type=..., ...)` sets the rope variant.
    3 layers, vocabulary 333, context 2048 unless overridden; weights ~ N(0, 0.08), so that logits are not flat.
    """
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    class_name, config_name, fields = tiny_hybrid.MODELS.get(family) or (_MODELS[family][0], *_MODELS[family])
    defaults = {
        "vocab_size": VOCAB_SIZE,
        "num_hidden_layers": 3,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
    }
    fields = (
        defaults
        | {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
            "tie_word_embeddings": False,
        }
        | fields
    )
    fields |= overrides
    rope = {"rope_type": "default"} | fields.pop("rope", {}) | {"rope_theta": fields.pop("rope_theta")}
    config = getattr(transformers, f"{config_name}Config")(**fields, rope_parameters=rope)
    if hasattr(config, "partial_rotary_factor"):  # of Transformers up to 5.17, beside the one that its models read
        config.partial_rotary_factor = rope.get("partial_rotary_factor", config.partial_rotary_factor)
    model = getattr(transformers, f"{class_name}ForCausalLM")(config)
    _randomise(model, seed)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2},
    )
    write_tokenizer(folder)
    if shards > 1:
        _split(folder, shards)
    return folder


def _randomise(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # tied heads come once
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("A_log"):
                parameter.copy_(noise - 2.0)  # so that states remember some tens of tokens
            else:
                parameter.copy_(1.0 + 0.1 * noise if "norm" in name else 0.08 * noise)


def _split(folder: Path, shards: int) -> None:
    """Deal the tensors of model.safetensors out to `shards` files with an index, as large checkpoints are stored."""
    whole = folder / "model.safetensors"
    tensors = load_file(whole)
    weight_map = {}
    for number in range(shards):
        shard = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        names = sorted(tensors)[number::shards]
        save_file(
            {name: tensors[name].clone() for name in names},
            folder / shard,
            metadata={"format": "pt"},
        )
        weight_map |= dict.fromkeys(names, shard)
    size = sum(tensor.nbytes for tensor in tensors.values())
    whole.unlink()
    _write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": size}, "weight_map": weight_map},
    )


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json (SmolLM2's kind of byte-level BPE, 333 tokens) and tokenizer_config.json into `folder`."""
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "model_max_length": 2048,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


@functools.cache
def tokenizer_json() -> str:
    """The tiny tokenizer as the text of a tokenizer.json: every byte has a token, special tokens have ids 0, 1, 2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise RuntimeError(f"the tiny tokenizer has {tokenizer.get_vocab_size()} tokens; lengthen its text")
    return tokenizer.to_str()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


_TEXT = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on in the warm light of the morning.",
    "In the beginning there was a word, and the word was long; then there were two words, and they were shorter.",
    "def add(first, second):\n    return first + second\n\n\nfor number in range(10):\n    print(add(number, 1))\n",
    "Once upon a time there was a miller who had three sons, his mill, a donkey and a cat; the sons had to grind.",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune must want a wife.",
    "What is the capital of France? The capital of France is Paris. What is the capital of Italy? It is Rome.",
]
