"""What a step of each shape reads and computes, against numbers worked out by hand."""

from __future__ import annotations

from bench.gpu.shapes import DENSE27B, SMOLLM2
from tandem.compile.models.families import resolve


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
