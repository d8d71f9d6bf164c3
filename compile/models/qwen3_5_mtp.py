"""The layer of qwen3_5 models that drafts: multi-token prediction, MTP (DeepSeek-V3, arXiv 2412.19437, section 2.2).

From the id at p + 1 and what the model's final norm gave at p it predicts the id at p + 2, and, from its own output in
place of the model's, those behind. Its cache holds position p in slot p. Written as parts that are traced one by one:
TappedHead, which is the model's, and Entrance, `qwen3_5.AttentionBlock` and Guesses of a draft, or Entrance and Keys of
a sync. Letters as in `qwen3_5`; N rows of the ring `taps`, O output rows, V vocabulary, K guesses a row.
"""

from __future__ import annotations

from torch import Tensor, nn

from tandem.compile.models.llama import Head, parameter
from tandem.compile.models.qwen3_5 import AttentionBlock, Pass
from tandem.compile.models.spec import HybridSpec
from tandem.kernels import add_rms_norm, argmax_gap, embedding, gather_rows, linear, rms_norm, scatter_rows, top_k

LENGTH = 4
"""Guesses of a chain: those behind are rarely right."""
TOP = 2
"""Tokens that are guessed for each place."""


class TappedHead(Head):
    """The model's head, which leaves what the final norm gives in a ring for the drafter."""

    def forward(  # type: ignore[override]
        self, h: Tensor, delta: Tensor, output_row: Tensor, taps: Tensor, tap_out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `Head`; taps [N, H], tap_out [R] int32, the row of it for each, -1 for none."""
        _, normed = add_rms_norm(h, delta, self.final_norm, self.eps)
        scatter_rows(normed, taps, tap_out)
        logits = linear(gather_rows(normed, output_row), self.head, None)
        return logits, *argmax_gap(logits)


class Entrance(nn.Module):
    """Norms of a token's embedding and of the tap before it, and a product of each, whose sum enters the block."""

    def __init__(self, spec: HybridSpec) -> None:
        super().__init__()
        self.eps, hidden = spec.rms_norm_eps, spec.hidden_size
        self.embedding = parameter(spec.vocab_size, hidden)
        self.embedding_norm = parameter(hidden)
        self.fc_embedding = parameter(hidden, hidden)
        self.hidden_norm = parameter(hidden)
        self.fc_hidden = parameter(hidden, hidden)

    def forward(self, token: Tensor, taps: Tensor, tap: Tensor) -> tuple[Tensor, Tensor]:
        """token and tap [R] int32, taps [N, H] -> h and delta [R, H]."""
        embedded = rms_norm(embedding(token, self.embedding), self.embedding_norm, self.eps)
        h = linear(embedded, self.fc_embedding, None)
        hidden = rms_norm(gather_rows(taps, tap), self.hidden_norm, self.eps)
        return h, linear(hidden, self.fc_hidden, None)


class Keys(AttentionBlock):
    """The block as far as its cache: all that rows of a known text need. Queries come of the same product."""

    def forward(  # type: ignore[override]
        self, h: Tensor, delta: Tensor, inputs: Pass, k_cache: Tensor, v_cache: Tensor
    ) -> None:
        """As `AttentionBlock`, but nothing comes out."""
        _, x = self.enter(h, delta)
        self.project(x, inputs, k_cache, v_cache)


class Guesses(nn.Module):
    """The last norm, left in the ring for the row behind, and the likeliest tokens. `head` is the model's."""

    def __init__(self, spec: HybridSpec) -> None:
        super().__init__()
        self.eps = spec.rms_norm_eps
        self.final_norm = parameter(spec.hidden_size)
        self.head = parameter(spec.vocab_size, spec.hidden_size)

    def forward(
        self, h: Tensor, delta: Tensor, output_row: Tensor, taps: Tensor, tap_out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """-> logits [O, V], and of each row the K likeliest tokens, their logits, and the log of all exponentials' sum.

        taps and tap_out as in `TappedHead`.
        """
        _, hidden = add_rms_norm(h, delta, self.final_norm, self.eps)
        scatter_rows(hidden, taps, tap_out)
        logits = linear(gather_rows(hidden, output_row), self.head, None)
        return logits, *top_k(logits, TOP)
