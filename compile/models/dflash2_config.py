"""What a DFlash2 drafter is, read from the config.json of its checkpoint, and whether it belongs to a target.

Knows nothing of tensors and files. Fields keep the names of the published configs; those of `dflash_config` stand
beside the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.compile.models.config import Config, contradiction, unsupported
from tandem.compile.models.rope import resolve_rope
from tandem.compile.models.spec import LlamaSpec, RopeSpec
from tandem.errors import CheckpointError

ARCHITECTURE = "DFlash2DraftModel"
SLIDING = "sliding_attention"
MAX_HEAD_DIM = 256
"""Attention holds a whole head at once."""
MAX_BLOCK = 32
"""Rows of a block, which one pass holds."""
MAX_TOP_K = 32
SECTION = "dflash_config"


@dataclass(frozen=True, slots=True)
class Dflash2Spec:
    """A block drafter. It has neither embedding nor head: those are the target's."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeSpec
    sliding_window: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]  # ascending; of each the output is read
    mask_token_id: int
    block_size: int
    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int

    @property
    def taps(self) -> tuple[int, ...]:
        """Which residual streams are read, by the layer that each enters: the output of layer i enters layer i + 1."""
        return tuple(layer + 1 for layer in self.target_layer_ids)

    @property
    def tap_width(self) -> int:
        """Numbers of a token that the target hands over: its tapped streams side by side."""
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def query_size(self) -> int:
        """Width of q, all heads side by side."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Width of k, and of v."""
        return self.num_key_value_heads * self.head_dim

    @property
    def scale(self) -> float:
        """What attention scores are multiplied with."""
        return float(self.head_dim**-0.5)

    @property
    def conv_groups(self) -> int:
        """Runs of channels that share what a row adds to the convolution."""
        return self.hidden_size // self.conv_group_size

    @property
    def delta_size(self) -> int:
        """What a row adds on one side of a sublayer: per tap and group."""
        return self.conv_kernel_size * self.conv_groups


def resolve_drafter(config: Mapping[str, Any]) -> Dflash2Spec:
    """The spec of a drafter's config.json.

    CompileError for another architecture or an option that is not supported, CheckpointError for a field that is
    missing, malformed or contradicts another.
    """
    fields, own = Config(config), Config(config).section(SECTION)
    _require_supported(fields, own)
    context, hidden = fields.size("max_position_embeddings"), fields.size("hidden_size")
    spec = Dflash2Spec(
        hidden_size=hidden,
        intermediate_size=fields.size("intermediate_size"),
        num_hidden_layers=fields.size("num_hidden_layers"),
        num_attention_heads=fields.size("num_attention_heads"),
        num_key_value_heads=fields.size("num_key_value_heads"),
        head_dim=fields.size("head_dim"),
        vocab_size=fields.size("vocab_size"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        max_position_embeddings=context,
        rope=resolve_rope(fields, context),
        sliding_window=fields.size("sliding_window"),
        num_target_layers=fields.size("num_target_layers"),
        target_layer_ids=_layer_ids(own),
        mask_token_id=_index(own, "mask_token_id"),
        block_size=own.size("block_size"),
        conv_kernel_size=own.size("conv_kernel_size"),
        conv_group_size=own.size("conv_group_size"),
        selector_rank=own.size("selector_rank"),
        selector_top_k=own.size("selector_top_k"),
    )
    _check(spec, fields)
    return spec


def require_target(drafter: Dflash2Spec, target: LlamaSpec, origin: str) -> None:
    """CheckpointError, naming the field, where the drafter at `origin` was made for another target."""
    pairs = {
        "hidden_size": (drafter.hidden_size, target.hidden_size),
        "vocab_size": (drafter.vocab_size, target.vocab_size),
        "num_target_layers": (drafter.num_target_layers, target.num_hidden_layers),
    }
    for field, (own, wanted) in pairs.items():
        if own != wanted:
            raise CheckpointError(
                f"{origin}: a drafter for another model: its {field} is {own}, this target has {wanted}; "
                "give the drafter that was made for this target, or leave it out"
            )


def _require_supported(fields: Config, own: Config) -> None:
    architectures = fields.get("architectures", [])
    if architectures != [ARCHITECTURE]:
        raise unsupported("architectures", architectures, f"[{ARCHITECTURE!r}]")
    if SECTION not in fields:
        raise CheckpointError(f"the checkpoint's config lacks {SECTION}; is it complete?")
    fields.only("hidden_act", "silu")
    fields.only("attention_bias", False)
    # Published code takes a sliding layer without this field for a causal one.
    if fields.flag("is_causal", True):
        raise unsupported("is_causal", fields.get("is_causal"), "false: rows of a block see each other")
    for layer_type in fields.get("layer_types", []):
        if layer_type != SLIDING:
            raise unsupported("layer_types", layer_type, SLIDING)
    own.only("input_embedding_scale", 1.0)
    own.only("output_multiplier", 1.0)
    for place in (fields, own):
        place.only("final_logit_softcapping")


def _layer_ids(own: Config) -> tuple[int, ...]:
    ids = own.get("target_layer_ids", [])
    sound = isinstance(ids, list) and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids)
    if not sound or not ids or ids != sorted(set(ids)):
        name = own.full_name("target_layer_ids")
        raise CheckpointError(f"the checkpoint's config has {name} = {ids!r}; wanted layers in ascending order")
    return tuple(ids)


def _index(own: Config, name: str) -> int:
    """A whole number from 0 up."""
    value = own.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CheckpointError(f"the checkpoint's config has {own.full_name(name)} = {value!r}; wanted a token's id")
    return value


def _check(spec: Dflash2Spec, fields: Config) -> None:
    heads, kv_heads = spec.num_attention_heads, spec.num_key_value_heads
    if heads % kv_heads:
        second = f"num_key_value_heads = {kv_heads}"
        raise contradiction(f"num_attention_heads = {heads}", second, "of which it is no multiple")
    if spec.head_dim % 2 or spec.head_dim > MAX_HEAD_DIM:
        raise unsupported("head_dim", spec.head_dim, f"even numbers up to {MAX_HEAD_DIM}")
    if spec.hidden_size % spec.conv_group_size:
        second = f"{SECTION}.conv_group_size = {spec.conv_group_size}"
        raise contradiction(f"hidden_size = {spec.hidden_size}", second, "of which it is no multiple")
    if (listed := fields.get("layer_types")) and len(listed) != spec.num_hidden_layers:
        raise contradiction(f"num_hidden_layers = {spec.num_hidden_layers}", f"{len(listed)} layer_types")
    if spec.target_layer_ids[-1] >= spec.num_target_layers:
        first = f"{SECTION}.target_layer_ids up to {spec.target_layer_ids[-1]}"
        raise contradiction(first, f"num_target_layers = {spec.num_target_layers}", "which are counted from 0")
    if spec.mask_token_id >= spec.vocab_size:
        first = f"{SECTION}.mask_token_id = {spec.mask_token_id}"
        raise contradiction(first, f"vocab_size = {spec.vocab_size}", "which are counted from 0")
    if not 2 <= spec.block_size <= MAX_BLOCK:
        raise unsupported(f"{SECTION}.block_size", spec.block_size, f"2 to {MAX_BLOCK}")
    if not 2 <= spec.selector_top_k <= min(MAX_TOP_K, spec.vocab_size):
        raise unsupported(f"{SECTION}.selector_top_k", spec.selector_top_k, f"2 to {MAX_TOP_K}")
    if spec.sliding_window < spec.block_size:
        second = f"{SECTION}.block_size = {spec.block_size}"
        raise contradiction(f"sliding_window = {spec.sliding_window}", second, "which it is to hold")
