"""A DFlash2 drafter to be trained: its state dict is a checkpoint in the published layout.

Many blocks of a text are drafted at once: each sees the context before its anchor and its own rows. What its parts are
is told in `compile/models/dflash2.py`. Letters: B sequences, T tokens of context, N blocks a sequence of S rows each,
H hidden_size, D head_dim, K taps of the convolutions, J selector_rank, k candidates, W tap_width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tandem.compile.models.dflash2_config import Dflash2Spec
from tandem.compile.models.rope import rope_tables
from tandem.compile.train.layers import SwiGLU, turned


class Norm(nn.Module):
    """RMS norm with a plain weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


class Conv(nn.Module):
    """What stands on both sides of a sublayer; it begins as what changes nothing."""

    def __init__(self, spec: Dflash2Spec) -> None:
        super().__init__()
        self.group = spec.conv_group_size
        self.base_kernel = nn.Parameter(torch.zeros(2, spec.conv_kernel_size, spec.hidden_size))
        self.kernel_projection = nn.Linear(spec.hidden_size, 2 * spec.delta_size, bias=False)
        with torch.no_grad():
            self.base_kernel[:, 0] = 1

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [..., H] -> factors [..., K, H] of the side before the sublayer, and of the side behind it."""
        taps = self.base_kernel.shape[1]
        moved = self.kernel_projection(x).unflatten(-1, (2, taps, -1)).repeat_interleave(self.group, -1)
        before, behind = (self.base_kernel + moved).unbind(-3)
        return before, behind


def convolve(x: Tensor, factors: Tensor) -> Tensor:
    """x [..., S, H] by factors [..., S, K, H]: each row and those before it in its block."""
    total = x * factors[..., 0, :]
    for tap in range(1, factors.shape[-2]):
        total = total + F.pad(x, (0, 0, tap, 0))[..., : x.shape[-2], :] * factors[..., tap, :]
    return total


class Where:
    """Where blocks stand in their texts: angles of rows and context, and which of both each row sees."""

    def __init__(self, anchors: Tensor, length: int, spec: Dflash2Spec, cos: Tensor, sin: Tensor) -> None:
        """anchors [B, N], positions of the blocks' first rows in texts of `length` tokens."""
        size, device = spec.block_size, anchors.device
        position = (anchors[..., None] + torch.arange(size, device=device)).flatten(1)  # [B, N * S]
        self.of_rows = cos[position], sin[position]
        every = torch.arange(length, device=device).expand(len(anchors), length)
        self.of_context = cos[every], sin[every]
        block = torch.arange(anchors.shape[1], device=device).repeat_interleave(size)
        prefix = anchors.repeat_interleave(size, 1)[..., None]
        past = (every[:, None] < prefix) & (position[..., None] - every[:, None] < spec.sliding_window)
        own = (block[:, None] == block).expand(len(anchors), -1, -1)
        self.seen = torch.cat((past, own), -1)[:, None]  # [B, 1, N * S, T + N * S]


class Attention(nn.Module):
    def __init__(self, spec: Dflash2Spec) -> None:
        super().__init__()
        self.spec, hidden = spec, spec.hidden_size
        self.q_proj = nn.Linear(hidden, spec.query_size, bias=False)
        self.k_proj = nn.Linear(hidden, spec.key_value_size, bias=False)
        self.v_proj = nn.Linear(hidden, spec.key_value_size, bias=False)
        self.o_proj = nn.Linear(spec.query_size, hidden, bias=False)
        self.q_norm, self.k_norm = (Norm(spec.head_dim, spec.rms_norm_eps) for _ in range(2))

    def forward(self, x: Tensor, context: Tensor, where: Where) -> Tensor:
        """x [B, N, S, H], context [B, T, H] -> [B, N, S, H]"""
        rows = x.flatten(1, 2)
        q = turned(self.q_norm(self._heads(self.q_proj, rows)), *where.of_rows)
        own, past = (
            (turned(self.k_norm(self._heads(self.k_proj, y)), *angles), self._heads(self.v_proj, y))
            for y, angles in ((rows, where.of_rows), (context, where.of_context))
        )
        k, v = (torch.cat(parts, 1).transpose(1, 2) for parts in zip(past, own, strict=True))
        q, k, v = (part.to(v.dtype) for part in (q.transpose(1, 2), k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=where.seen, enable_gqa=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2)).view_as(x)
        return out

    def _heads(self, project: nn.Linear, x: Tensor) -> Tensor:
        return project(x).unflatten(-1, (-1, self.spec.head_dim))


class Layer(nn.Module):
    """One layer of the residual stream of the rows."""

    def __init__(self, spec: Dflash2Spec) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (
            Norm(spec.hidden_size, spec.rms_norm_eps) for _ in range(2)
        )
        self.attention_conv, self.mlp_conv = Conv(spec), Conv(spec)
        self.self_attn, self.mlp = Attention(spec), SwiGLU(spec)

    def forward(self, h: Tensor, context: Tensor, where: Where) -> Tensor:
        x = self.input_layernorm(h)
        before, behind = self.attention_conv.factors(x)
        h = h + convolve(self.self_attn(convolve(x, before), context, where), behind)
        x = self.post_attention_layernorm(h)
        before, behind = self.mlp_conv.factors(x)
        return h + convolve(self.mlp(convolve(x, before)), behind)


class Selector(nn.Module):
    """How well a token follows the one before it, given what stands before the head."""

    def __init__(self, spec: Dflash2Spec) -> None:
        super().__init__()
        self.hidden_projection = nn.Linear(spec.hidden_size, spec.selector_rank, bias=False)
        self.predecessor_codebook, self.successor_codebook = (
            nn.Parameter(torch.empty(spec.vocab_size, spec.selector_rank)) for _ in range(2)
        )

    def forward(self, hidden: Tensor, before: Tensor, candidates: Tensor) -> Tensor:
        """hidden [..., H], ids before [..., p] and candidates [..., k] -> bonds [..., p, k]."""
        gated = self.predecessor_codebook[before] * self.hidden_projection(hidden)[..., None, :]
        return gated @ self.successor_codebook[candidates].mT


class Drafter(nn.Module):
    """The whole drafter but embedding and head, which are the target's."""

    cos: Tensor
    sin: Tensor

    def __init__(self, spec: Dflash2Spec, *, seed: int = 0) -> None:
        super().__init__()
        self.spec = spec
        self.fc = nn.Linear(spec.tap_width, spec.hidden_size, bias=False)
        self.hidden_norm, self.norm = (Norm(spec.hidden_size, spec.rms_norm_eps) for _ in range(2))
        self.layers = nn.ModuleList([Layer(spec) for _ in range(spec.num_hidden_layers)])
        self.candidate_selector = Selector(spec)
        tables = rope_tables(spec.rope, spec.head_dim, spec.max_position_embeddings + spec.block_size)
        for name, table in zip(("cos", "sin"), tables, strict=True):
            self.register_buffer(name, torch.from_numpy(table), persistent=False)
        self._initialise(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """Matrices that keep a vector's size; what moves a convolution, and bonds, begin as nothing.

        Layers are as loud as the stream they add to. It begins as the mask's embedding, and with a head that is the
        embedding a quiet one would make every drafter begin as one that is sure of the mask.
        """
        for name, parameter in self.named_parameters():
            if name.endswith(("kernel_projection.weight", "successor_codebook")):
                parameter.zero_()
            elif name.endswith("predecessor_codebook"):
                parameter.normal_(0, 1, generator=generator)
            elif parameter.ndim == 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5, generator=generator)

    def forward(self, taps: Tensor, anchors: Tensor, rows: Tensor) -> Tensor:
        """taps [B, T, W], anchors [B, N] positions, rows [B, N, S, H] embedded -> what stands before the head."""
        where = Where(anchors, taps.shape[1], self.spec, self.cos, self.sin)
        context, h = self.hidden_norm(self.fc(taps)), rows
        for layer in self.layers:
            h = layer(h, context, where)
        out: Tensor = self.norm(h)
        return out
