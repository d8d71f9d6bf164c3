"""Operators: every reduction of a model, one file each, named `torch.ops.tandem.<name>`.

Here stand the references in plain PyTorch (float32 inside; float64 inputs stay float64) that define the
operators and let torch.export trace them. Letters of all files: R rows, H width, K input width, N output
width, D head dimension, G kv heads, C context length (of rotary tables), V vocabulary, O output rows, M moves, L lanes,
B blocks per lane, P pages, T tokens of a page, S state slots, F rows of factors, W width of a convolution, C its
channels.
"""

from tandem.kernels.attention import attention
from tandem.kernels.conv import causal_conv, conv_commit, conv_verify
from tandem.kernels.delta import delta_commit, delta_gates, delta_rule, delta_verify
from tandem.kernels.draft_block import block_attention, block_conv
from tandem.kernels.embedding import embedding
from tandem.kernels.gate import sigmoid_gate
from tandem.kernels.head import argmax_gap, gather_rows, scatter_rows, scatter_sum
from tandem.kernels.kv import kv_move, kv_write
from tandem.kernels.lattice import lattice_scores, lattice_walk
from tandem.kernels.linear import linear
from tandem.kernels.norm import add_rms_norm, gated_rms_norm, rms_norm
from tandem.kernels.rotary import rotary
from tandem.kernels.swiglu import swiglu
from tandem.kernels.top_k import top_k

__all__ = [
    "add_rms_norm",
    "argmax_gap",
    "attention",
    "block_attention",
    "block_conv",
    "causal_conv",
    "conv_commit",
    "conv_verify",
    "delta_commit",
    "delta_gates",
    "delta_rule",
    "delta_verify",
    "embedding",
    "gated_rms_norm",
    "gather_rows",
    "kv_move",
    "kv_write",
    "lattice_scores",
    "lattice_walk",
    "linear",
    "rms_norm",
    "rotary",
    "scatter_rows",
    "scatter_sum",
    "sigmoid_gate",
    "swiglu",
    "top_k",
]
