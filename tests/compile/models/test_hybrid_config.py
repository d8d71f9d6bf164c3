"""From a qwen3_5 config to its spec, alone and inside a vision-language one, and one clear line for all else."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.compile.models.families import resolve
from tandem.compile.models.spec import HybridSpec, RopeSpec
from tandem.errors import CheckpointError, CompileError

FULL, LINEAR = "full_attention", "linear_attention"
# Fields of the published 27B that matter here.
TEXT: dict[str, Any] = {
    "attention_bias": False,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "layer_types": [FULL if (i + 1) % 4 == 0 else LINEAR for i in range(64)],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "model_type": "qwen3_5_text",
    "mtp_num_hidden_layers": 1,
    "num_attention_heads": 24,
    "num_hidden_layers": 64,
    "num_key_value_heads": 4,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "vocab_size": 248320,
}


def config(**fields: Any) -> dict[str, Any]:
    plain = {"architectures": ["Qwen3_5ForCausalLM"], **TEXT, **fields}
    return {name: value for name, value in plain.items() if value != "absent"}


def wrapped(*, tied: Any = "absent", **fields: Any) -> dict[str, Any]:
    inside = {name: value for name, value in (TEXT | fields).items() if value != "absent"}
    whole = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "vision_config": {}}
    whole |= {"tie_word_embeddings": tied, "text_config": inside, "image_token_id": 248056}
    return {name: value for name, value in whole.items() if value != "absent"}


def hybrid(fields: dict[str, Any]) -> HybridSpec:
    spec = resolve(fields)
    assert isinstance(spec, HybridSpec)
    return spec


def test_the_27b() -> None:
    spec = hybrid(config())
    assert spec == HybridSpec(
        family="qwen3_5",
        hidden_size=5120,
        intermediate_size=17408,
        num_hidden_layers=64,
        num_attention_heads=24,
        num_key_value_heads=4,
        head_dim=256,
        vocab_size=248320,
        rms_norm_eps=1e-6,
        max_position_embeddings=262144,
        tie_word_embeddings=False,
        attention_bias=False,
        output_bias=False,
        head_norms=True,
        rope=RopeSpec("default", 1e7),
        layer_types=(LINEAR, LINEAR, LINEAR, FULL) * 16,
        partial_rotary_factor=0.25,
        linear_num_key_heads=16,
        linear_num_value_heads=48,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
    )
    # As engine-facts 1.1 has them.
    assert (spec.rotary_dim, spec.linear_key_size, spec.linear_value_size, spec.conv_size) == (64, 2048, 6144, 10240)
    assert (spec.state_shape, spec.tail_shape) == ((48, 128, 128), (3, 10240))


def test_a_wrapped_text_model_is_the_same() -> None:
    assert resolve(wrapped()) == resolve(config())
    assert resolve(wrapped() | {"architectures": None}) == resolve(config())
    for tied in (True, False):
        assert resolve(wrapped(tied=tied)).tie_word_embeddings is tied
        assert resolve(wrapped(tied=tied, tie_word_embeddings=not tied)).tie_word_embeddings is tied
        assert resolve(wrapped(tie_word_embeddings=tied)).tie_word_embeddings is tied


def test_absent_fields_mean_what_transformers_takes_them_for() -> None:
    by_interval = hybrid(config(layer_types="absent", full_attention_interval=3, num_hidden_layers=5))
    assert by_interval.layer_types == (LINEAR, LINEAR, FULL, LINEAR, LINEAR)
    names = ("layer_types", "full_attention_interval", "partial_rotary_factor", "linear_conv_kernel_dim", "head_dim")
    names += ("linear_key_head_dim", "linear_num_key_heads", "linear_value_head_dim", "mamba_ssm_dtype")
    rope = {"rope_theta": 10000000, "rope_type": "default"}
    assert resolve(config(**dict.fromkeys(names, "absent"), rope_parameters=rope)) == resolve(config())
    assert hybrid(config(linear_num_value_heads="absent")).linear_num_value_heads == 32


@pytest.mark.parametrize(
    ("fields", "words"),
    (
        ({"mamba_ssm_dtype": "bfloat16"}, ("mamba_ssm_dtype", "bfloat16", "float32")),
        ({"attn_output_gate": False}, ("attn_output_gate", "False")),
        ({"hidden_act": "gelu"}, ("hidden_act", "gelu")),
        ({"layer_types": [LINEAR] * 63 + ["sliding_attention"]}, ("layer_types", "sliding_attention", FULL, LINEAR)),
        ({"layer_types": [LINEAR] * 64}, ("layer_types", "no full_attention", "at least one layer of each type")),
        ({"layer_types": [FULL] * 64}, ("layer_types", "no linear_attention")),
        ({"layer_types": "absent", "num_hidden_layers": 3}, ("layer_types", "no full_attention")),
        ({"linear_conv_kernel_dim": 1}, ("linear_conv_kernel_dim", "1", "2 to")),
        ({"linear_conv_kernel_dim": 9}, ("linear_conv_kernel_dim", "9")),
        ({"linear_key_head_dim": 257}, ("linear_key_head_dim", "257", "up to 256")),
        ({"linear_value_head_dim": 512}, ("linear_value_head_dim", "512")),
        ({"head_dim": 300}, ("head_dim", "300")),
    ),
)
def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any], words: tuple[str, ...]) -> None:
    for whole in (config(**fields), wrapped(**fields)):
        _refused(whole, CompileError, words)


@pytest.mark.parametrize("factor", (0.001, 2.0, 0.25 + 1 / 256))
def test_a_share_of_a_head_that_is_no_even_number_of_dimensions(factor: float) -> None:
    rope = {"rope_theta": 1e7, "rope_type": "default", "partial_rotary_factor": factor}
    whole = config(rope_parameters=rope, partial_rotary_factor="absent")
    _refused(whole, CompileError, ("partial_rotary_factor", str(factor), "head_dim = 256"))


@pytest.mark.parametrize(
    ("fields", "words"),
    (
        ({"linear_num_value_heads": 40}, ("linear_num_value_heads", "40", "linear_num_key_heads", "16")),
        ({"num_key_value_heads": 5}, ("num_attention_heads", "24", "num_key_value_heads", "5")),
        ({"layer_types": [LINEAR, FULL]}, ("2 layer_types", "64")),
        ({"layer_types": FULL}, ("layer_types", FULL)),
        ({"full_attention_interval": 0, "layer_types": "absent"}, ("full_attention_interval", "0")),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e7}}, ("rope_parameters", "'yarn'")),
        ({"linear_num_key_heads": -1}, ("linear_num_key_heads", "-1")),
        ({"linear_key_head_dim": "128"}, ("linear_key_head_dim", "'128'")),
    ),
)
def test_what_is_malformed_is_named(fields: dict[str, Any], words: tuple[str, ...]) -> None:
    for whole in (config(**fields), wrapped(**fields)):
        _refused(whole, CheckpointError, words)


ROPE = TEXT["rope_parameters"]


@pytest.mark.parametrize(
    ("fields", "words"),
    (
        ({"full_attention_interval": 3}, ("layer_types[2] = 'linear_attention'", "full_attention_interval = 3")),
        ({"full_attention_interval": 128}, ("layer_types[3] = 'full_attention'", "which makes it 'linear_attention'")),
        (
            {"layer_types": [LINEAR] * 63 + [FULL]},
            ("layer_types[3] = 'linear_attention'", "full_attention_interval = 4"),
        ),
        (
            {"partial_rotary_factor": 0.5},
            ("partial_rotary_factor = 0.5", "rope_parameters.partial_rotary_factor = 0.25"),
        ),
        ({"rope_theta": 10000.0}, ("rope_theta = 10000", "rope_parameters.rope_theta = 1e+07")),
        (
            {"rope_parameters": ROPE | {"mrope_section": [11, 11, 11]}},
            ("mrope_section = [11, 11, 11]", "33 angles", "32"),
        ),
        ({"head_dim": 128}, ("mrope_section = [11, 11, 10]", "partial_rotary_factor = 0.25 of head_dim = 128")),
        ({"rope_parameters": ROPE | {"mrope_section": 32}}, ("mrope_section = 32", "wanted a list of whole numbers")),
        ({"rope_parameters": ROPE | {"mrope_section": ["32"]}}, ("mrope_section = ['32']", "wanted a list")),
        ({"linear_num_value_heads": 8}, ("linear_num_value_heads = 8", "linear_num_key_heads = 16")),
    ),
)
def test_fields_that_contradict_are_named(fields: dict[str, Any], words: tuple[str, ...]) -> None:
    for whole in (config(**fields), wrapped(**fields)):
        _refused(whole, CheckpointError, words)


def test_fields_that_say_the_same_twice_are_no_contradiction() -> None:
    assert resolve(config(rope_theta=1e7)) == resolve(config())
    other = [FULL if i % 3 == 2 else LINEAR for i in range(64)]
    assert hybrid(config(layer_types=other, full_attention_interval=3)).layer_types == tuple(other)
    assert hybrid(config(layer_types=other, full_attention_interval="absent")).layer_types == tuple(other)
    assert resolve(config(rope_parameters={**ROPE, "mrope_section": None})) == resolve(config())


def test_a_wrapper_without_a_text_model() -> None:
    whole = wrapped()
    del whole["text_config"]
    _refused(whole, CheckpointError, ("text_config", "lacks"))
    _refused(wrapped() | {"text_config": [1]}, CheckpointError, ("text_config", "a dictionary"))
    _refused(wrapped() | {"quantization_config": {"bits": 4}}, CompileError, ("quantization_config",))


def _refused(fields: dict[str, Any], error: type[Exception], words: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        resolve(fields)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)
