"""From config.json to spec: every family's facts, and one clear line for everything else."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.compile.models.families import FAMILIES, resolve
from tandem.compile.models.spec import LlamaSpec, RopeSpec
from tandem.errors import CheckpointError, CompileError

# As published (SmolLM2-135M-Instruct, older style with a field of its own).
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 49152,
}


def config(family: str = "llama", **fields: Any) -> dict[str, Any]:
    architecture = next(f.architecture for f in FAMILIES if f.name == family)
    plain = SMOLLM2 | {"architectures": [architecture], "model_type": family, "sliding_window": None}
    return {name: value for name, value in (plain | fields).items() if value != "absent"}


def test_smollm2() -> None:
    assert resolve(SMOLLM2) == LlamaSpec(
        family="llama",
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        vocab_size=49152,
        rms_norm_eps=1e-5,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        attention_bias=False,
        output_bias=False,
        head_norms=False,
        rope=RopeSpec("default", 100000.0),
    )


@pytest.mark.parametrize(
    ("model_type", "fields", "facts"),
    (
        ("llama", {}, (False, False, False)),
        ("llama", {"attention_bias": True}, (True, True, False)),
        ("mistral", {"attention_bias": True}, (False, False, False)),  # Transformers' Mistral has none either
        ("qwen2", {}, (True, False, False)),
        ("qwen3", {}, (False, False, True)),
        ("qwen3", {"attention_bias": True}, (True, True, True)),
    ),
)
def test_biases_and_head_norms(model_type: str, fields: dict[str, Any], facts: tuple[bool, ...]) -> None:
    spec = resolve(config(model_type, **fields))
    assert spec.family == model_type
    assert (spec.attention_bias, spec.output_bias, spec.head_norms) == facts


def test_absent_fields_mean_what_transformers_takes_them_for() -> None:
    absent = dict.fromkeys(("num_key_value_heads", "rms_norm_eps", "tie_word_embeddings", "rope_theta"), "absent")
    spec = resolve(config(**absent))
    assert (spec.num_key_value_heads, spec.rms_norm_eps, spec.tie_word_embeddings) == (9, 1e-6, False)
    assert spec.rope.rope_theta == 10000.0
    assert resolve(config("qwen3")).head_dim == 128
    assert resolve(config("qwen3", head_dim=80)).head_dim == 80
    assert resolve(config(head_dim=None)).head_dim == 64
    assert resolve(config(architectures="absent")) == resolve(config())


def test_a_window_no_shorter_than_the_context_is_none() -> None:
    plain = resolve(config("mistral"))
    assert resolve(config("mistral", sliding_window=8192)) == plain
    assert resolve(config("qwen2", use_sliding_window=False, sliding_window=4096)) == resolve(config("qwen2"))
    assert resolve(config("qwen3", layer_types=["full_attention"] * 30)) == resolve(config("qwen3"))


@pytest.mark.parametrize(
    ("fields", "words"),
    (
        ({"architectures": ["GPT2LMHeadModel"]}, ("architectures", "GPT2LMHeadModel", "LlamaForCausalLM", "Qwen3")),
        ({"architectures": None, "model_type": "gemma3"}, ("model_type", "gemma3")),
        ({"architectures": [], "model_type": None}, ("model_type", "None")),
        ({"architectures": [["LlamaForCausalLM"]]}, ("architectures",)),
        ({"hidden_act": "gelu"}, ("hidden_act", "gelu", "silu")),
        ({"quantization_config": {"quant_method": "gptq"}}, ("quantization_config", "gptq", "absent")),
        ({"mlp_bias": True}, ("mlp_bias", "True", "False")),
        ({"rope_interleaved": True}, ("rope_interleaved", "True", "False")),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ("rope_scaling.rope_type", "dynamic")),
        ({"partial_rotary_factor": 0.5}, ("partial_rotary_factor", "0.5")),
        ({"head_dim": 63}, ("head_dim", "63", "even")),
        ({"head_dim": 258}, ("head_dim", "258", "up to 256")),
    ),
)
def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any], words: tuple[str, ...]) -> None:
    _refused(config(**fields), CompileError, words)


def test_layers_without_end_are_refused_by_name() -> None:
    _refused(config(num_hidden_layers=20_000_000), CompileError, ("num_hidden_layers", "20000000", "1024"))


@pytest.mark.parametrize(
    ("model_type", "fields", "words"),
    (
        ("mistral", {"sliding_window": 4096}, ("sliding_window", "4096", "null")),
        ("mistral", {"sliding_window": "absent"}, ("sliding_window", "4096")),
        ("qwen2", {"use_sliding_window": True}, ("use_sliding_window", "True", "False")),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, ("layer_types", "sliding_attention")),
    ),
)
def test_windows_are_refused_by_name(model_type: str, fields: dict[str, Any], words: tuple[str, ...]) -> None:
    _refused(config(model_type, **fields), CompileError, words)


@pytest.mark.parametrize(
    ("fields", "words"),
    (
        *(({name: "absent"}, (name, "lacks")) for name in ("hidden_size", "vocab_size", "max_position_embeddings")),
        ({"num_hidden_layers": None}, ("num_hidden_layers", "lacks")),
        ({"num_hidden_layers": 0}, ("num_hidden_layers", "= 0")),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "rope_scaling": {"rope_type": "linear"}},
            ("rope_parameters", "rope_scaling", "'linear'", "the one that is not meant"),
        ),
        ({"hidden_size": 576.0}, ("hidden_size", "576.0", "whole number")),
        ({"hidden_size": True}, ("hidden_size", "True", "whole number")),
        ({"rms_norm_eps": "1e-5"}, ("rms_norm_eps", "'1e-5'")),
        ({"rms_norm_eps": -1e-5}, ("rms_norm_eps", "-1e-05")),
        ({"tie_word_embeddings": "yes"}, ("tie_word_embeddings", "'yes'", "true or false")),
        ({"num_key_value_heads": 4}, ("num_attention_heads", "9", "num_key_value_heads", "4")),
        ({"architectures": "LlamaForCausalLM"}, ("architectures", "a list")),
    ),
)
def test_what_is_malformed_is_named(fields: dict[str, Any], words: tuple[str, ...]) -> None:
    _refused(config(**fields), CheckpointError, words)


def _refused(fields: dict[str, Any], error: type[Exception], words: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        resolve(fields)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)
