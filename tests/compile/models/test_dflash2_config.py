"""Configs of drafters: what is read, what is refused and in which words, and which target a drafter is for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.compile.models.dflash2_config import Dflash2Spec, require_target, resolve_drafter
from tandem.compile.models.families import resolve
from tandem.compile.models.spec import LlamaSpec
from tandem.errors import CheckpointError, CompileError
from tests.compile.models.dflash2_oracle import TINY

QWEN = TINY | {
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "sliding_window": 2048,
    "layer_types": ["sliding_attention"] * 5,
    "num_target_layers": 64,
    "dflash_config": {
        "block_size": 8,
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "mask_token_id": 248070,
        "selector_rank": 256,
        "selector_top_k": 16,
        "target_layer_ids": [5, 19, 33, 47, 61],
    },
}
"""The numbers of the published drafter of Qwen3.8-27B."""


def changed(**fields: Any) -> dict[str, Any]:
    """The tiny config with other fields; those of dflash_config begin with own_."""
    own = {name.removeprefix("own_"): value for name, value in fields.items() if name.startswith("own_")}
    plain = {name: value for name, value in fields.items() if not name.startswith("own_")}
    return {**TINY, **plain, "dflash_config": {**TINY["dflash_config"], **own}}


def test_the_published_drafter() -> None:
    """Its parameters are counted in engine facts, section 4.1."""
    from tandem.compile.models.dflash2_weights import drafter_sources

    spec = resolve_drafter(QWEN)
    assert spec.taps == (6, 20, 34, 48, 62) and spec.tap_width == 25600 and spec.conv_groups == 320
    names: dict[str, int] = {}
    for source in drafter_sources(spec).values():
        for name, shape in zip(source.names, source.shapes, strict=True):
            names[name] = 1
            for size in shape:
                names[name] *= size
    assert sum(count for name, count in names.items() if name.startswith("layers.0.")) == 332_974_336
    assert names["fc.weight"] == 131_072_000
    backbone = sum(count for name, count in names.items() if not name.startswith("candidate_selector"))
    assert backbone == 1_795_953_920
    assert sum(names.values()) == 1_924_404_480


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["DFlashDraftModel"]}, "architectures = ['DFlashDraftModel']; supported: ['DFlash2Draft"),
        ({"is_causal": True}, "is_causal = True; supported: false: rows of a block see each other"),
        ({"is_causal": None}, "is_causal = None; supported: false"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types = 'full_attention'; supported: slid"),
        ({"layer_types": ["sliding_attention"]}, "num_hidden_layers = 2 and 1 layer_types"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"final_logit_softcapping": 20.0}, "final_logit_softcapping = 20.0; supported: absent"),
        ({"own_final_logit_softcapping": 20.0}, "dflash_config.final_logit_softcapping = 20.0"),
        ({"own_output_multiplier": 0.2}, "dflash_config.output_multiplier = 0.2; supported: 1.0"),
        ({"own_input_embedding_scale": 2.0}, "dflash_config.input_embedding_scale = 2.0"),
        ({"num_key_value_heads": 4}, "num_attention_heads = 6 and num_key_value_heads = 4, of which it is no multiple"),
        ({"head_dim": 9}, "head_dim = 9; supported: even numbers up to 256"),
        ({"head_dim": 258}, "head_dim = 258"),
        ({"own_conv_group_size": 5}, "hidden_size = 24 and dflash_config.conv_group_size = 5"),
        ({"own_target_layer_ids": [1, 7]}, "target_layer_ids up to 7 and num_target_layers = 7"),
        ({"own_mask_token_id": 61}, "dflash_config.mask_token_id = 61 and vocab_size = 61"),
        ({"own_block_size": 1}, "dflash_config.block_size = 1; supported: 2 to 32"),
        ({"own_block_size": 33}, "dflash_config.block_size = 33"),
        ({"own_selector_top_k": 1}, "dflash_config.selector_top_k = 1; supported: 2 to 32"),
        ({"sliding_window": 4}, "sliding_window = 4 and dflash_config.block_size = 5, which it is to hold"),
        ({"num_target_layers": None}, "lacks num_target_layers"),
        ({"own_selector_rank": None}, "lacks dflash_config.selector_rank"),
        ({"own_mask_token_id": -1}, "dflash_config.mask_token_id = -1; wanted a token's id"),
        ({"own_mask_token_id": None}, "dflash_config.mask_token_id = None; wanted a token's id"),
        ({"own_target_layer_ids": []}, "target_layer_ids = []; wanted layers in ascending order"),
        ({"own_target_layer_ids": [3, 1]}, "target_layer_ids = [3, 1]; wanted layers in ascending order"),
        ({"own_target_layer_ids": [1, 1]}, "wanted layers in ascending order"),
        ({"own_target_layer_ids": "all"}, "wanted layers in ascending order"),
        ({"own_target_layer_ids": [-1]}, "wanted layers in ascending order"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_parameters.rope_type = 'dynamic'"),
    ],
)
def test_what_is_not_supported_or_malformed_is_said(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((CompileError, CheckpointError)) as caught:
        resolve_drafter(changed(**fields))
    assert message in str(caught.value)


def test_a_config_of_something_else_is_said() -> None:
    with pytest.raises(CheckpointError, match="lacks dflash_config; is it complete"):
        resolve_drafter({name: value for name, value in TINY.items() if name != "dflash_config"})


def target(**fields: Any) -> LlamaSpec:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 24,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "num_hidden_layers": 7,
        "vocab_size": 61,
        "max_position_embeddings": 64,
    }
    return resolve(config | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 48}, "x: a drafter for another model: its hidden_size is 24, this target has 48; give the dr"),
        ({"vocab_size": 62}, "its vocab_size is 61, this target has 62"),
        ({"num_hidden_layers": 6}, "its num_target_layers is 7, this target has 6"),
    ],
)
def test_a_drafter_of_another_target_is_refused(fields: dict[str, Any], message: str) -> None:
    drafter = resolve_drafter(TINY)
    require_target(drafter, target(), "x")
    with pytest.raises(CheckpointError) as caught:
        require_target(drafter, target(**fields), "x")
    assert message in str(caught.value)


def test_only_the_sizes_decide_whose_drafter_it_is() -> None:
    """Its own depth, heads and context are its own."""
    drafter: Dflash2Spec = replace(resolve_drafter(TINY), num_hidden_layers=1, max_position_embeddings=16)
    require_target(drafter, target(), "x")
