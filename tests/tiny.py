"""Tiny random checkpoints for tests: Hugging Face folders of every family, and GGUF files made from them.

Sizes are awkward on purpose. Knows nothing of Tandem: Transformers, safetensors and gguf write everything.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

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


def make_checkpoint(
    folder: Path,
    family: str,
    *,
    seed: int = 0,
    shards: int = 1,
    dtype: str = "float32",
    **overrides: Any,
) -> Path:
    """Write a random checkpoint of `family` (one of FAMILIES) into `folder`, readable by Transformers; returns it.

    `overrides` are config fields by their Hugging Face names; `rope=dict(rope_type=..., ...)` sets the rope variant.
    3 layers, vocabulary 333, context 2048 unless overridden; weights ~ N(0, 0.08), so that logits are not flat.
    """
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    class_name, fields = _MODELS[family]
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
    rope = (
        {"rope_type": "default"}
        | fields.pop("rope", {})
        | {"rope_theta": fields.pop("rope_theta")}
    )
    config = getattr(transformers, f"{class_name}Config")(
        **fields, rope_parameters=rope
    )
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
        raise RuntimeError(
            f"the tiny tokenizer has {tokenizer.get_vocab_size()} tokens; lengthen its text"
        )
    return tokenizer.to_str()


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of a q or k projection as llama.cpp's converter does: halves of each head interleaved."""
    rows = weight.shape[0]
    return (
        weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:])
        .swapaxes(1, 2)
        .reshape(weight.shape)
    )


def make_gguf(
    path: Path,
    folder: Path,
    *,
    weight_type: str = "F32",
    architecture: str = "llama",
    pre: str = "smollm",
    fields: Mapping[str, Any] = {},
    drop: tuple[str, ...] = (),
) -> Path:
    """Write the tiny llama checkpoint in `folder` (one file, not sharded) as a GGUF file; returns `path`.

    Matrices are stored as `weight_type` (F32, F16, BF16, Q8_0, Q4_0, Q4_1; a row no multiple of 32 stays F16 as in
    llama.cpp), vectors as F32. `fields` adds header fields, replacing those of the same name; `drop` leaves out
    header fields and tensors by name.
    """
    import gguf

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    header = (
        _header(config, architecture, folder)
        | {"tokenizer.ggml.pre": pre}
        | dict(fields)
    )
    for key, value in header.items():
        if key not in drop:
            _add_field(writer, key, value)
    for name, values in _tensors(config, folder):
        if name in drop:
            continue
        kind = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else weight_type]
        if kind.name.startswith("Q") and values.shape[1] % 32:
            kind = gguf.GGMLQuantizationType.F16
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _header(config: dict[str, Any], architecture: str, folder: Path) -> dict[str, Any]:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = sorted(
        tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__
    )
    rope = config["rope_parameters"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    header = {
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.embedding_length": config["hidden_size"],
        f"{architecture}.feed_forward_length": config["intermediate_size"],
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": config["num_key_value_heads"],
        f"{architecture}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{architecture}.rope.freq_base": rope["rope_theta"],
        f"{architecture}.rope.dimension_count": head_dim,
        f"{architecture}.attention.key_length": head_dim,
        f"{architecture}.attention.value_length": head_dim,
        f"{architecture}.vocab_size": config["vocab_size"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [
            3 if token in SPECIAL_TOKENS else 1 for token in tokens
        ],
        "tokenizer.ggml.merges": [
            " ".join(pair) for pair in tokenizer["model"]["merges"]
        ],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    if rope["rope_type"] in ("linear", "yarn"):
        header[f"{architecture}.rope.scaling.type"] = rope["rope_type"]
        header[f"{architecture}.rope.scaling.factor"] = rope["factor"]
    if rope["rope_type"] == "yarn":
        header[f"{architecture}.rope.scaling.original_context_length"] = rope[
            "original_max_position_embeddings"
        ]
    return header


def _add_field(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, value)


def _tensors(config: dict[str, Any], folder: Path) -> list[tuple[str, np.ndarray]]:
    renamed = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    whole = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
    }
    tensors = []
    for name, tensor in load_file(folder / "model.safetensors").items():
        stem, _, kind = name.rpartition(".")
        values = tensor.float().numpy()
        if "q_proj" in stem or "k_proj" in stem:
            values = permuted(
                values,
                config[
                    "num_attention_heads" if "q_proj" in stem else "num_key_value_heads"
                ],
            )
        if stem not in whole:
            _, _, layer, part = stem.split(".", 3)
            tensors.append((f"blk.{layer}.{renamed[part]}.{kind}", values))
        else:
            tensors.append((f"{whole[stem]}.{kind}", values))
    if config["rope_parameters"]["rope_type"] == "llama3":
        tensors.append(("rope_freqs.weight", _llama3_factors(config)))
    return tensors


def _llama3_factors(config: dict[str, Any]) -> np.ndarray:
    """What llama.cpp's converter stores for llama3 rope: by how much each frequency is divided, fp32 [head_dim / 2]."""
    rope, factors = config["rope_parameters"], []
    head_dim = (
        config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    )
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    context = rope["original_max_position_embeddings"]
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (i / head_dim)
        smooth = (context / wavelength - low) / (high - low)
        factors.append(
            1 / ((1 - smooth) / rope["factor"] + smooth) if 0 <= smooth <= 1 else 0
        )
        if wavelength < context / high:
            factors[-1] = 1.0
        elif wavelength > context / low:
            factors[-1] = rope["factor"]
    return np.array(factors, dtype=np.float32)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


_TEXT = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on in the warm light of the morning.",
    "In the beginning there was a word, and the word was long; then there were two words, and they were shorter.",
    "def add(first, second):\n    return first + second\n\n\nfor number in range(10):\n    print(number, add(number, 1))\n",
    "Once upon a time there was a miller who had three sons, his mill, a donkey and a cat; the sons had to grind.",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune must want a wife.",
    "What is the capital of France? The capital of France is Paris. What is the capital of Italy? It is Rome.",
]
