"""A model run eagerly, one lane over its own paged cache: the oracle that compiled programs are held against.

In float64 it is the truth of its weights; knows nothing of bundles or programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tandem.compile.models import llama, qwen3_5
from tandem.compile.models.rope import rope_tables
from tandem.compile.models.spec import LINEAR_ATTENTION, HybridSpec, LlamaSpec
from tandem.compile.models.weights import weight_name
from tandem.keys import MAX_TREE_ROWS
from tandem.tree import DraftTree

SLOTS, SLOT = 3, 1
"""State slots, and the one that is used: the others stay NaN."""


class ReferenceModel:
    """The parts of a family composed, computing in `dtype` (float32 or float64) with weights cast to it.

    `tensors` holds parameters by full name (`weights.load`). `length` is the number of committed tokens. The
    cache holds `context_length` tokens (at most 1024 unless given) and the rows of one verify; its pages are
    dealt out of order and filled with NaN, as are state slots, so that a wrong read is seen. `caches` has two
    tensors a layer: K and V, or of a recurrent layer state and tail. `rounded` as in `qwen3_5.RecurrentBlock`.
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
        rounded: bool = False,
    ) -> None:
        self.spec, self.dtype, self.length = spec, dtype, 0
        context = context_length or min(spec.max_position_embeddings, 1024)
        num_pages = -(-(context + MAX_TREE_ROWS) // page_tokens)
        cos, sin = rope_tables(spec.rope, spec.rotary_dim, context + MAX_TREE_ROWS)
        self.cos, self.sin = torch.from_numpy(cos), torch.from_numpy(sin)
        self.block_table = torch.arange(num_pages - 1, -1, -1, dtype=torch.int32)[None]
        self.state_slot = torch.tensor([SLOT], dtype=torch.int32)
        with torch.device("meta"):
            self.embed, self.head = llama.Embed(spec), llama.Head(spec)
            self.blocks = [_block(spec, layer, rounded) for layer in range(spec.num_hidden_layers)]
        pages = (num_pages, page_tokens, cache_dtype or dtype)
        self.caches = [
            _states(spec, dtype) if isinstance(block, qwen3_5.RecurrentBlock) else _pages(spec, *pages)
            for block in self.blocks
        ]
        self._factors = [
            _factors(spec, dtype) if isinstance(block, qwen3_5.RecurrentBlock) else None for block in self.blocks
        ]
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
        logits = self._pass(DraftTree.chain(ids[0], ids[1:], [1.0] * (len(ids) - 1), "text"), keep=True)
        self.length += len(ids)
        return logits

    def verify(self, tree: DraftTree) -> Tensor:
        """Logits [nodes, V] of a draft tree whose anchor follows the committed text; commits nothing."""
        return self._pass(tree, keep=False)

    def commit(self, path: Sequence[int]) -> None:
        """Keep the accepted nodes `path` (anchor first) of the last verified tree as text."""
        row = torch.tensor(path, dtype=torch.int32)
        source, target = self.length + row, self.length + torch.arange(len(path), dtype=torch.int32)
        lane = torch.zeros_like(row)
        for (first, second), factors in zip(self.caches, self._factors, strict=True):
            if factors:
                qwen3_5.RecurrentCommit()(factors, first, second, self.state_slot, lane, row, target)
            else:
                llama.Commit()(first, second, lane, source, target, self.block_table)
        self.length += len(path)

    def greedy(self, prompt: Sequence[int], num_tokens: int, stop_ids: frozenset[int] = frozenset()) -> list[int]:
        """Up to `num_tokens` most likely tokens after `prompt`, a stop id being the last."""
        tokens = [int(self.forward(prompt)[-1].argmax())]
        while len(tokens) < num_tokens and tokens[-1] not in stop_ids:
            tokens.append(int(self.extend(tokens[-1:])[-1].argmax()))
        return tokens

    @torch.no_grad()
    def _pass(self, rows: DraftTree, *, keep: bool) -> Tensor:
        """Logits of a line of rows that all stay, or, without `keep`, of a tree that may."""
        tree = not (keep or rows.is_chain)
        where = self._rows(rows, tree)
        h, delta = self.embed(torch.tensor(rows.tokens, dtype=torch.int32)), None
        for block, caches, factors in zip(self.blocks, self.caches, self._factors, strict=True):
            block.tree = tree
            if isinstance(block, llama.Block):
                h, delta = block(h, delta, llama.Pass(*where[:8]), *caches)
            elif factors is None or keep:
                h, delta = block(h, delta, qwen3_5.Pass(*where), *caches)
            else:
                h, delta = block(h, delta, qwen3_5.Pass(*where), *caches, factors)
        output_row = torch.arange(len(rows), dtype=torch.int32)
        logits: Tensor = self.head(h, delta, output_row)[0]
        return logits

    def _rows(self, rows: DraftTree, tree: bool) -> tuple[Tensor, ...]:
        """The fields of a `qwen3_5.Pass`; its first eight are those of a `llama.Pass`."""
        length, count = self.length, len(rows)
        slot = torch.arange(length, length + count, dtype=torch.int32)
        position = length + torch.tensor(rows.depths(), dtype=torch.int32)
        ancestor = torch.zeros(count, MAX_TREE_ROWS, dtype=torch.int32)
        for node in range(count) if tree else ():
            path = torch.tensor(rows.path(node), dtype=torch.int32)
            ancestor[node, : len(path)] = length + path
        prefix = torch.full_like(slot, length) if tree else position + 1
        passed = (position, torch.zeros_like(slot), slot, prefix, ancestor, self.block_table, self.cos, self.sin)
        return *passed, torch.tensor(rows.parents, dtype=torch.int32), self.state_slot


def _block(spec: LlamaSpec, layer: int, rounded: bool) -> llama.Block | qwen3_5.AttentionBlock | qwen3_5.RecurrentBlock:
    if not isinstance(spec, HybridSpec):
        return llama.Block(spec)
    if spec.layer_types[layer] == LINEAR_ATTENTION:
        return qwen3_5.RecurrentBlock(spec, rounded=rounded)
    return qwen3_5.AttentionBlock(spec)


def _pages(spec: LlamaSpec, num_pages: int, page_tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    heads, width = spec.num_key_value_heads, spec.head_dim
    k, v = (num_pages, heads, width, page_tokens), (num_pages, heads, page_tokens, width)
    return torch.full(k, torch.nan, dtype=dtype), torch.full(v, torch.nan, dtype=dtype)


def _states(spec: LlamaSpec, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    assert isinstance(spec, HybridSpec)
    state, tail = (SLOTS, *spec.state_shape), (SLOTS, *spec.tail_shape)
    return torch.full(state, torch.nan, dtype=dtype), torch.full(tail, torch.nan, dtype=dtype)


def _factors(spec: LlamaSpec, dtype: torch.dtype) -> qwen3_5.Factors:
    assert isinstance(spec, HybridSpec)
    shapes = ((MAX_TREE_ROWS, *shape) for shape in spec.factor_shapes)
    return qwen3_5.Factors(*(torch.full(shape, torch.nan, dtype=dtype) for shape in shapes))
