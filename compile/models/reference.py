"""A model run eagerly, one lane over its own paged cache: the oracle that compiled programs are held against.

In float64 it is the truth of its weights; knows nothing of bundles or programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tandem.compile.models.llama import Block, Commit, Embed, Head, Pass
from tandem.compile.models.rope import rope_tables
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.models.weights import weight_name
from tandem.keys import MAX_TREE_ROWS
from tandem.tree import DraftTree


class ReferenceModel:
    """The parts of `llama` composed, computing in `dtype` (float32 or float64) with weights cast to it.

    `tensors` holds parameters by full name (`weights.load`). `length` is the number of committed tokens. The
    cache holds `context_length` tokens (at most 1024 unless given) and the rows of one verify; its pages are
    dealt out of order and filled with NaN, so that a wrong read is seen.
    """

    def __init__(
        self,
        spec: LlamaSpec,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float64,
        page_tokens: int = 16,
        *,
        context_length: int | None = None,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self.spec, self.dtype, self.length = spec, dtype, 0
        context = context_length or min(spec.max_position_embeddings, 1024)
        num_pages = -(-(context + MAX_TREE_ROWS) // page_tokens)
        cos, sin = rope_tables(spec.rope, spec.head_dim, context + MAX_TREE_ROWS)
        self.cos, self.sin = torch.from_numpy(cos), torch.from_numpy(sin)
        self.block_table = torch.arange(num_pages - 1, -1, -1, dtype=torch.int32)[None]
        k_page = (spec.num_key_value_heads, spec.head_dim, page_tokens)
        v_page = (spec.num_key_value_heads, page_tokens, spec.head_dim)
        self.caches = [
            tuple(torch.full((num_pages, *page), torch.nan, dtype=cache_dtype or dtype) for page in (k_page, v_page))
            for _ in range(spec.num_hidden_layers)
        ]
        with torch.device("meta"):
            self.embed, self.head = Embed(spec), Head(spec)
            self.blocks = [Block(spec) for _ in range(spec.num_hidden_layers)]
        cast = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        modules: list[tuple[nn.Module, int | None]] = [(self.embed, None), (self.head, None)]
        modules += [(block, layer) for layer, block in enumerate(self.blocks)]
        for module, layer in modules:
            state = {name: cast[weight_name(spec, name, layer)] for name in module.state_dict()}
            module.load_state_dict(state, assign=True)

    def forward(self, ids: Sequence[int]) -> Tensor:
        """Logits [len(ids), V] of every token of a fresh text."""
        self.length = 0
        return self.extend(ids)

    def extend(self, ids: Sequence[int]) -> Tensor:
        """Append to the text in one pass; logits [len(ids), V]."""
        rows = torch.arange(self.length, self.length + len(ids), dtype=torch.int32)
        logits = self._pass(ids, rows, rows, rows + 1, torch.zeros(len(ids), MAX_TREE_ROWS, dtype=torch.int32), False)
        self.length += len(ids)
        return logits

    def verify(self, tree: DraftTree) -> Tensor:
        """Logits [nodes, V] of a draft tree whose anchor follows the committed text; commits nothing."""
        length, nodes = self.length, len(tree)
        ancestor = torch.zeros(nodes, MAX_TREE_ROWS, dtype=torch.int32)
        for node in range(nodes):
            path = torch.tensor(tree.path(node), dtype=torch.int32)
            ancestor[node, : len(path)] = length + path
        position = length + torch.tensor(tree.depths(), dtype=torch.int32)
        slot = torch.arange(length, length + nodes, dtype=torch.int32)
        return self._pass(tree.tokens, position, slot, torch.full_like(slot, length), ancestor, True)

    def commit(self, path: Sequence[int]) -> None:
        """Keep the accepted nodes `path` (anchor first) of the last verified tree as text."""
        source = self.length + torch.tensor(path, dtype=torch.int32)
        target = torch.arange(self.length, self.length + len(path), dtype=torch.int32)
        for k_cache, v_cache in self.caches:
            Commit()(k_cache, v_cache, torch.zeros_like(source), source, target, self.block_table)
        self.length += len(path)

    def greedy(self, prompt: Sequence[int], num_tokens: int, stop_ids: frozenset[int] = frozenset()) -> list[int]:
        """Up to `num_tokens` most likely tokens after `prompt`, a stop id being the last."""
        tokens = [int(self.forward(prompt)[-1].argmax())]
        while len(tokens) < num_tokens and tokens[-1] not in stop_ids:
            tokens.append(int(self.extend(tokens[-1:])[-1].argmax()))
        return tokens

    @torch.no_grad()
    def _pass(
        self, ids: Sequence[int], position: Tensor, slot: Tensor, prefix: Tensor, ancestor: Tensor, tree: bool
    ) -> Tensor:
        lane = torch.zeros_like(position)
        inputs = Pass(position, lane, slot, prefix, ancestor, self.block_table, self.cos, self.sin)
        h, delta = self.embed(torch.tensor(ids, dtype=torch.int32)), None
        for block, (k_cache, v_cache) in zip(self.blocks, self.caches, strict=True):
            block.tree = tree
            h, delta = block(h, delta, inputs, k_cache, v_cache)
        output_row = torch.arange(len(ids), dtype=torch.int32)
        logits: Tensor = self.head(h, delta, output_row)[0]
        return logits
