"""The layers of a qwen3_5 model over whole sequences, parameters named as Hugging Face names them; no cache.

Letters: B sequences, T tokens, H hidden_size, D head_dim.
"""

from __future__ import annotations

from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tandem.compile.models.dflash2_config import Dflash2Spec
from tandem.compile.models.spec import HybridSpec
from tandem.compile.train.recurrence import delta_rule


class Norm(nn.Module):
    """RMS norm whose weight is what is added to one."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)).to(x.dtype)


class GatedNorm(nn.Module):
    """RMS norm with a plain weight, then a gate."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight * F.silu(gate)


class SwiGLU(nn.Module):
    def __init__(self, spec: HybridSpec | Dflash2Spec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.down_proj = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Attention(nn.Module):
    """Causal attention; of each head's rows in q_proj the second half gates what the head gives."""

    def __init__(self, spec: HybridSpec) -> None:
        super().__init__()
        self.spec, bias = spec, spec.attention_bias
        self.q_proj = nn.Linear(spec.hidden_size, 2 * spec.query_size, bias=bias)
        self.k_proj = nn.Linear(spec.hidden_size, spec.key_value_size, bias=bias)
        self.v_proj = nn.Linear(spec.hidden_size, spec.key_value_size, bias=bias)
        self.o_proj = nn.Linear(spec.query_size, spec.hidden_size, bias=bias)
        self.q_norm, self.k_norm = (Norm(spec.head_dim, spec.rms_norm_eps) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, T, H]; cos and sin [T, rotary_dim / 2]."""
        spec, (batch, length, _) = self.spec, x.shape
        q, gate = self.q_proj(x).view(batch, length, -1, 2 * spec.head_dim).chunk(2, -1)
        k, v = (p(x).view(batch, length, -1, spec.head_dim) for p in (self.k_proj, self.v_proj))
        q, k = (turned(norm(y), cos, sin) for y, norm in ((q, self.q_norm), (k, self.k_norm)))
        groups = spec.num_attention_heads // spec.num_key_value_heads
        q, k, v = q.transpose(1, 2), *(y.repeat_interleave(groups, 2).transpose(1, 2) for y in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=spec.scale).transpose(1, 2)
        out: Tensor = self.o_proj((mixed * gate.sigmoid()).flatten(2))
        return out


class GatedDeltaNet(nn.Module):
    def __init__(self, spec: HybridSpec) -> None:
        super().__init__()
        self.spec, heads = spec, spec.linear_num_value_heads
        self.in_proj_qkv = nn.Linear(spec.hidden_size, spec.conv_size, bias=False)
        self.in_proj_z = nn.Linear(spec.hidden_size, spec.linear_value_size, bias=False)
        self.in_proj_b = nn.Linear(spec.hidden_size, heads, bias=False)
        self.in_proj_a = nn.Linear(spec.hidden_size, heads, bias=False)
        self.conv1d = nn.Conv1d(
            spec.conv_size, spec.conv_size, spec.linear_conv_kernel_dim, groups=spec.conv_size, bias=False
        )
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.dt_bias = nn.Parameter(torch.zeros(heads))
        self.norm = GatedNorm(spec.linear_value_head_dim, spec.rms_norm_eps)
        self.out_proj = nn.Linear(spec.linear_value_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, H]"""
        spec, (batch, length, _) = self.spec, x.shape
        raw, z = self.in_proj_qkv(x), self.in_proj_z(x)
        taps = self.conv1d.weight.squeeze(1)  # [channels, W], the oldest first
        padded = F.pad(raw, (0, 0, taps.shape[1] - 1, 0))
        shifted = (padded[:, i : i + length] * taps[:, i].to(raw.dtype) for i in range(taps.shape[1]))
        qkv = F.silu(reduce(torch.add, shifted))
        beta, a = self.in_proj_b(x).sigmoid(), self.in_proj_a(x)
        with torch.autocast(x.device.type, enabled=False):
            wide = torch.promote_types(self.A_log.dtype, torch.float32)
            sizes = [spec.linear_key_size, spec.linear_key_size, spec.linear_value_size]
            q, k, v = torch.split(qkv.to(wide), sizes, -1)
            q, k = (unit(y.view(batch, length, -1, spec.linear_key_head_dim)) for y in (q, k))
            groups = spec.linear_num_value_heads // spec.linear_num_key_heads
            q, k = (y.repeat_interleave(groups, 2) for y in (q * spec.linear_key_head_dim**-0.5, k))
            g = -self.A_log.exp() * F.softplus(a.to(wide) + self.dt_bias)
            o = delta_rule(q, k, v.view(batch, length, -1, spec.linear_value_head_dim), g, beta.to(wide))
            gated = self.norm(o, z.to(wide).view_as(o))
        out: Tensor = self.out_proj(gated.flatten(2))
        return out


class Layer(nn.Module):
    """One layer of the residual stream."""

    def __init__(self, spec: HybridSpec, *, recurrent: bool) -> None:
        super().__init__()
        self.input_layernorm = Norm(spec.hidden_size, spec.rms_norm_eps)
        self.post_attention_layernorm = Norm(spec.hidden_size, spec.rms_norm_eps)
        self.recurrent = recurrent
        if recurrent:
            self.linear_attn = GatedDeltaNet(spec)
        else:
            self.self_attn = Attention(spec)
        self.mlp = SwiGLU(spec)

    def forward(self, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = self.input_layernorm(h)
        h = h + (self.linear_attn(x) if self.recurrent else self.self_attn(x, cos, sin))
        out: Tensor = h + self.mlp(self.post_attention_layernorm(h))
        return out


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, T, heads, D], the first dimensions of each head rotated by cos and sin [T, half] or [B, T, half]."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[..., None, :].to(x.dtype), sin[..., None, :].to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
