"""What a step of each shape reads and computes, against numbers worked out by hand."""

from __future__ import annotations

from bench.gpu.shapes import DENSE27B, HYBRID27B, SMOLLM2
from tandem.compile.models.families import resolve
from tandem.compile.models.spec import HybridSpec
from tandem.compile.models.weights import weight_sources


def test_the_large_one_is_that_of_the_issue() -> None:
    spec = resolve(DENSE27B.config())
    assert (spec.num_hidden_layers, spec.hidden_size, spec.intermediate_size) == (64, 5120, 17408)
    assert (spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim) == (24, 4, 256)
    assert spec.vocab_size == 248_320
    assert not spec.tie_word_embeddings


def test_parameters_are_counted_over_all_layers() -> None:
    one = 8192 * 5120 + 5120 * 6144 + 34_816 * 5120 + 5120 * 17_408
    assert DENSE27B.layer_parameters == 64 * one
    assert SMOLLM2.layer_parameters == 30 * (960 * 576 + 576 * 576 + 3072 * 576 + 576 * 1536)


def test_a_step_reads_matrices_head_and_norms_but_no_embedding() -> None:
    assert DENSE27B.step_bytes == 2 * (DENSE27B.layer_parameters + 248_320 * 5120) + 4 * 129 * 5120


def test_the_cache_of_a_token() -> None:
    assert DENSE27B.kv_bytes(1) == 64 * 2 * 4 * 256 * 2
    assert DENSE27B.kv_bytes(32_768) == 2**33


def test_operations_of_a_prefill() -> None:
    alone = 2 * (SMOLLM2.layer_parameters + SMOLLM2.vocab_size * 576) + 4 * 30 * 576
    assert SMOLLM2.prefill_flops(1) == alone
    # The second token attends to two places, and its layers are computed once more.
    assert SMOLLM2.prefill_flops(2) - alone == 2 * SMOLLM2.layer_parameters + 2 * 4 * 30 * 576
    behind = SMOLLM2.prefill_flops(2, start=10) - SMOLLM2.prefill_flops(2)
    assert behind == 2 * 10 * 4 * 30 * 576


def test_the_hybrid_is_the_published_one() -> None:
    spec = resolve(HYBRID27B.config())
    assert isinstance(spec, HybridSpec)
    full = [layer for layer, kind in enumerate(spec.layer_types) if kind == "full_attention"]
    assert full == list(range(3, 64, 4)) and spec.num_recurrent_layers == 48
    assert (spec.linear_num_key_heads, spec.linear_num_value_heads, spec.state_shape) == (16, 48, (48, 128, 128))
    assert (spec.conv_size, spec.linear_conv_kernel_dim, spec.rotary_dim) == (10_240, 4, 64)
    assert (spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim) == (24, 4, 256)
    assert (spec.hidden_size, spec.intermediate_size, spec.vocab_size) == (5120, 17_408, 248_320)


def test_a_hybrid_counts_the_matrices_that_its_family_wants() -> None:
    sizes = {name: source.shape for name, source in weight_sources(resolve(HYBRID27B.config())).items()}
    wanted = sum(s[0] * s[1] for name, s in sizes.items() if len(s) == 2 and name not in ("embedding", "head"))
    assert HYBRID27B.layer_parameters == wanted
    assert wanted == 48 * (16_480 * 5120 + 5120 * 6144) + 16 * (14_336 * 5120 + 5120 * 6144) + 64 * 3 * 17_408 * 5120


def test_states_and_caches_of_a_hybrid() -> None:
    assert HYBRID27B.state_bytes == 48 * 3_145_728
    assert HYBRID27B.kv_bytes(32_768) == 2**31  # 64 KiB a token
    # A second token attends to two places in 16 layers and moves 48 layers' states.
    one, two = (HYBRID27B.prefill_flops(tokens) for tokens in (1, 2))
    assert two - one == 2 * HYBRID27B.layer_parameters + 2 * 4 * 16 * 6144 + 7 * 48 * 48 * 128 * 128
