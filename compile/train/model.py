"""A qwen3_5 model to be trained: its state dict is a checkpoint. What its layers are stands in `layers`.

Beside the model stands the layer that drafts (MTP), which learns the token behind the next, and those behind it from
its own output. Letters: B sequences, T tokens, H hidden_size, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tandem.compile.models.rope import rope_tables
from tandem.compile.models.spec import LINEAR_ATTENTION, HybridSpec
from tandem.compile.train.layers import Layer, Norm


class Trunk(nn.Module):
    """Everything up to the head."""

    def __init__(self, spec: HybridSpec) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(spec.vocab_size, spec.hidden_size)
        self.layers = nn.ModuleList([Layer(spec, recurrent=kind == LINEAR_ATTENTION) for kind in spec.layer_types])
        self.norm = Norm(spec.hidden_size, spec.rms_norm_eps)


class Drafter(nn.Module):
    """MTP: from the embedding of a token and what stands before the head at the token before it."""

    def __init__(self, spec: HybridSpec) -> None:
        super().__init__()
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (
            Norm(spec.hidden_size, spec.rms_norm_eps) for _ in range(3)
        )
        self.fc = nn.Linear(2 * spec.hidden_size, spec.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(spec, recurrent=False)])

    def forward(self, embedded: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = torch.cat((self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)), -1)
        # The stream keeps its precision, whatever products are rounded to.
        out: Tensor = self.norm(self.layers[0](self.fc(x).to(embedded.dtype), cos, sin))
        return out


class Model(nn.Module):
    """The whole model; its state dict is a checkpoint of `Qwen3_5ForCausalLM` and the tensors `mtp.*`.

    `hidden` is what stands before the head, `drafted` the same of the drafter.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, spec: HybridSpec, *, seed: int = 0) -> None:
        super().__init__()
        self.spec = spec
        self.model = Trunk(spec)
        self.lm_head = None if spec.tie_word_embeddings else nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        self.mtp = Drafter(spec)
        tables = rope_tables(spec.rope, spec.rotary_dim, spec.max_position_embeddings)
        for name, table in zip(("cos", "sin"), tables, strict=True):
            self.register_buffer(name, torch.from_numpy(table), persistent=False)
        self._initialise(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """Small normal weights, smaller ones that add to the residual stream; states that forget at many rates."""
        into_stream = 0.02 / math.sqrt(2 * len(self.spec.layer_types))
        for name, parameter in self.named_parameters():
            if name.endswith("A_log"):
                parameter.uniform_(1, 16, generator=generator).log_()
            elif name.endswith("dt_bias"):
                step = parameter.uniform_(math.log(1e-3), math.log(0.1), generator=generator).exp()
                parameter.copy_(step + torch.log(-torch.expm1(-step)))  # softplus gives the step back
            elif name.endswith("conv1d.weight"):
                parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
            elif parameter.ndim > 1:
                adds = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
                parameter.normal_(0, into_stream if adds else 0.02, generator=generator)

    def hidden(self, ids: Tensor) -> Tensor:
        """[B, T, H] of ids [B, T]"""
        h, cos, sin = self.model.embed_tokens(ids), self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.model.layers:
            h = layer(h, cos, sin)
        out: Tensor = self.model.norm(h)
        return out

    def drafted(self, next_ids: Tensor, hidden: Tensor) -> Tensor:
        """[B, T, H] of the ids behind those that made `hidden`."""
        length = next_ids.shape[1]
        out: Tensor = self.mtp(self.model.embed_tokens(next_ids), hidden, self.cos[:length], self.sin[:length])
        return out

    @property
    def head_weight(self) -> Tensor:
        """[V, H]; what makes logits of `hidden` and of `drafted`."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
