"""Every Triton kernel by its name."""

from __future__ import annotations

from tandem.kernels.cuda.attention import attention_merge, attention_split, attention_tail
from tandem.kernels.cuda.attention_chunk import attention_chunk
from tandem.kernels.cuda.attention_wide import attention_wide
from tandem.kernels.cuda.conv import conv_tail
from tandem.kernels.cuda.delta import delta_rule, delta_verify
from tandem.kernels.cuda.delta_commit import conv_commit, delta_commit
from tandem.kernels.cuda.embedding import embedding
from tandem.kernels.cuda.gate import gated_rms_norm, sigmoid_gate
from tandem.kernels.cuda.head import argmax_gap, argmax_partial, gather_rows
from tandem.kernels.cuda.kv import kv_move, kv_write
from tandem.kernels.cuda.launch import TritonKernel
from tandem.kernels.cuda.linear import linear, linear_chunk
from tandem.kernels.cuda.linear_rotary import linear_rotary
from tandem.kernels.cuda.norm import add_rms_norm, rms_norm
from tandem.kernels.cuda.parts import add_parts
from tandem.kernels.cuda.recurrent_inputs import recurrent_inputs
from tandem.kernels.cuda.rotary import rotary, rotary_kv_write
from tandem.kernels.cuda.sample_filter import sample_bins, sample_gather
from tandem.kernels.cuda.sample_logits import sample_learn, sample_logits, sample_weights
from tandem.kernels.cuda.sample_pick import sample_pick, sample_sums
from tandem.kernels.cuda.sample_settle import sample_settle
from tandem.kernels.cuda.swiglu import swiglu

KERNELS: dict[str, TritonKernel] = {
    kernel.name: kernel
    for kernel in (
        *(add_parts, add_rms_norm, argmax_gap, argmax_partial),
        *(attention_chunk, attention_merge, attention_split, attention_tail, attention_wide),
        *(conv_commit, conv_tail, delta_commit, delta_rule, delta_verify, gated_rms_norm, recurrent_inputs),
        *(embedding, gather_rows, kv_move, kv_write, linear, linear_chunk, linear_rotary, rms_norm, rotary),
        *(rotary_kv_write, sigmoid_gate, swiglu),
        *(sample_bins, sample_gather, sample_learn, sample_logits, sample_pick, sample_settle, sample_sums),
        sample_weights,
    )
}
