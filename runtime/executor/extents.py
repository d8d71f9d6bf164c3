"""What each kernel of the C++ library does with its numbers, as tables: which argument lies where, and how far it goes.

Words stand for numbers of a launch or for sizes that follow from them and from the geometry; `bounds` computes both.
"""

from __future__ import annotations

from collections.abc import Mapping

PANEL, LANES, PAGE, MAX_HEAD_DIM, MAX_TAPS = 32, 16, 64, 256, 8
"""As kernels have them: matrices are padded to panels of so many rows, heads in value pages to so many elements, pages
hold so many tokens; no head is wider, no convolution longer."""

OPTIONAL = {"linear": ("bias", "delta", "norm", "sum")}
"""By kernel: pointers that may be null."""
VERIFIES = ("attention_tree", "conv_verify", "delta_verify")
"""Kernels that read ancestors or write factors, of which io and the region have no more than a verify's rows."""
FLAGS = ("gated", "tree", "rounded")
"""Whole numbers that are 0 or 1."""

FIELDS: dict[str, tuple[str, ...]] = {
    name: (name,)
    for name in (
        *("token", "position", "slot", "prefix", "parent", "ancestor", "block_table", "state_slot", "argmax", "gap"),
        *("move_lane", "move_row", "move_target", "tap_out", "draft_token", "draft_logit", "draft_lse", "output_row"),
    )
} | {
    "candidate": ("draft_token",),
    "unary": ("draft_logit",),
    "score": ("draft_score",),
    "greedy": ("draft_walk",),
    "lane": ("lane", "move_lane"),
    "row": ("output_row", "tap"),
    "source": ("move_source",),
    "target": ("move_target",),
}
"""Arguments that only these fields of io may be: they hold indices, or come back to the host."""
BOOKS = ("predecessor", "successor")
"""Tables of a drafter, looked up row by row."""
FACTORS = ("raw", "k_factor", "u_factor", "decay_factor")
HOMES: Mapping[str, tuple[str, ...]] = (
    dict.fromkeys(("k_cache", "v_cache"), ("kv", "draft_kv"))
    | dict.fromkeys(("weight", "bias", "norm", "cos", "sin", "a_log", "dt_bias", *BOOKS), ("weights",))
    | dict.fromkeys(("state", "tail"), ("state",))
    | dict.fromkeys(FACTORS, ("factors",))
    | dict.fromkeys(("count", *FIELDS), ("io",))
    | {"ring": ("taps",)}
)
"""Regions of arguments; rows of a pass lie in scratch or in io."""
NAMED = (("gather_rows", "x"), ("scatter_sum", "ring"))
"""By kernel: arguments of which io names the rows, so that they may be any, of the pass or of the ring."""
GATHERED = {"output_row": ("scratch", "io"), "tap": ("taps",)}
"""By field that says which rows are gathered: where those may lie, as there are as many as it may name."""

Extents = dict[str, tuple[str, ...]]
INPUTS = ("x", "delta", "norm", "sum")
_WIDE: Extents = dict.fromkeys(("x", "z", "delta", "sum", "y", "weight", "logits"), ("width",))
_TURNS: Extents = dict.fromkeys(("cos", "sin"), ("positions", "half"))
_WRITTEN: Extents = dict.fromkeys("kv", ("kv_heads", "head_dim"))
_HEADS: Extents = dict.fromkeys("qxy", ("heads", "head_dim"))
_GROUPS: Extents = {"x": ("groups", "width"), "weight": ("width",), "y": ("groups", "width")}
_TAIL: Extents = {"tail": ("tail_taps", "channels"), "raw": ("factor_rows", "channels")}
_CONV: Extents = _TAIL | {"x": ("channels",), "y": ("channels",), "weight": ("taps", "channels")}
_STATE: Extents = {
    "state": ("value_heads", "key_dim", "value_dim"),
    "k_factor": ("factor_rows", "key_heads", "key_dim"),
    "u_factor": ("factor_rows", "value_heads", "value_dim"),
    "decay_factor": ("factor_rows", "value_heads"),
}
_DELTA: Extents = (
    _STATE
    | dict.fromkeys("qk", ("key_heads", "key_dim"))
    | dict.fromkeys("vy", ("value_heads", "value_dim"))
    | dict.fromkeys(("decay", "beta"), ("value_heads",))
)
EXTENTS: dict[str, Extents] = {
    **dict.fromkeys(("add", "mul", "sigmoid_gate", "add_rms_norm", "gather_rows", "argmax_gap"), _WIDE),
    "rms_norm": _GROUPS,
    "gated_rms_norm": _GROUPS | {"gate": ("groups", "width")},
    "swiglu": {"x": ("two", "width"), "y": ("width",)},
    "scatter_rows": _WIDE | {"ring": ("tap_rows", "width")},
    "scatter_sum": _WIDE | {"ring": ("width",)},
    "top_k": _WIDE,
    "embedding": {"weight": ("vocab", "stored"), "y": ("k",)},
    "linear": {"weight": ("panels", "stored"), "bias": ("n",), "y": ("outputs",)} | dict.fromkeys(INPUTS, ("k",)),
    "rotary": _HEADS | _TURNS,
    "kv_write": _WRITTEN,
    "rotary_kv_write": _HEADS | _TURNS | _WRITTEN,
    "attention": _HEADS,
    "attention_tree": _HEADS,
    "block_attention": _HEADS,
    "block_conv": dict.fromkeys("xy", ("channels",)) | {"delta": ("moved",), "weight": ("taps", "channels")},
    "lattice_scores": {"gate": ("rank",)} | dict.fromkeys(BOOKS, ("ids", "rank")),
    **dict.fromkeys(("causal_conv", "conv_verify"), _CONV),
    "conv_commit": _TAIL,
    "delta_gates": dict.fromkeys(("a", "b", "a_log", "dt_bias", "decay", "beta"), ("heads",)),
    **dict.fromkeys(("delta_rule", "delta_verify"), _DELTA),
    "delta_commit": _STATE,
}
"""By kernel, less its format: elements of an argument's row where it has a stride, of the whole where it has none."""
LAYER_STRIDES = dict.fromkeys(("state", "tail"), "slot_layer_bytes") | dict.fromkeys(FACTORS, "factor_layer_bytes")
"""Numbers that say how far apart an argument lies in one layer and the next, where a launch is of several `layers`."""
STORED = {"fp32": (4, 0), "bf16": (2, 0), "int8": (1, 4), "int4": (5 / 8, 0)}
"""Bytes that one output of a matrix takes: so many per input, and so many more. Low-bit inputs come in groups."""
GROUP = 32
INPUTS_OF = {"fp32": 1, "bf16": 2}
CACHE: Extents = {"k_cache": ("page", "kv_heads", "head_dim"), "v_cache": ("page", "kv_heads", "padded")}
