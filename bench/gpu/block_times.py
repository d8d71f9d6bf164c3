"""Times of a draft block's own kernels, against PyTorch's over the same numbers and how fast memory can be read.

    python3 -m bench.gpu.block_times

Attention goes through layers whose caches outgrow the second-level cache, in one CUDA graph with programmatic
dependence. PyTorch is given keys and values already gathered, of the window alone, and replays a CUDA graph as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import bench.gpu  # noqa: F401, makes spread importable
from bench.gpu.delta_times import call
from bench.gpu.timing import graph_us, read_ceiling
from tandem.kernels.cuda import draft_block, lattice

LAYERS, ANCHOR, PAGE, TAPS, GROUP, K = 8, 10_007, 64, 2, 16, 16
LANES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Shape:
    """A drafter's numbers; rows of a block."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    block: int
    rank: int
    vocabulary: int
    window: int = 2048

    @property
    def page(self) -> int:
        """Elements of a page of all layers."""
        return LAYERS * 2 * self.kv_heads * PAGE * self.head_dim


SHAPES = (
    Shape("27B, block 16", 5120, 32, 8, 128, 16, 256, 248_320),
    Shape("27B, block 8", 5120, 32, 8, 128, 8, 256, 248_320),
    Shape("SmolLM2, block 16", 576, 4, 2, 64, 16, 16, 49_152),
    Shape("SmolLM2, block 8", 576, 4, 2, 64, 8, 8, 49_152),
)


@dataclass(frozen=True, slots=True)
class Line:
    """Microseconds of ours and of PyTorch's, and megabytes that must be read."""

    name: str
    us: float
    peer_us: float
    megabytes: float

    def text(self, ceiling: float) -> str:
        share = 1e12 * self.megabytes / self.us / ceiling
        return f"{self.name:<40}{self.us:9.2f}{self.peer_us:9.2f}{self.peer_us / self.us:7.1f}x{share:8.0%}"


class Case:
    """Blocks of `lanes` lanes, all of them behind ANCHOR tokens, on the device."""

    def __init__(self, shape: Shape, lanes: int) -> None:
        torch.manual_seed(0)
        self.shape, self.lanes, self.rows = shape, lanes, lanes * shape.block
        first, behind = (ANCHOR - shape.window + 1) // PAGE, (ANCHOR + shape.block - 1) // PAGE + 1
        pages = lanes * (behind - first)
        self.table = torch.zeros(lanes, behind + 1, dtype=torch.int32, device="cuda")
        self.table[:, first:behind] = torch.randperm(pages, device="cuda").view(lanes, -1)
        self.cache = torch.randn(pages, shape.page, device="cuda").bfloat16()
        within = torch.arange(shape.block, device="cuda").repeat(lanes)
        self.where = {
            "position": (ANCHOR + within).int(), "prefix": torch.full_like(within, ANCHOR).int(),
            "lane": torch.arange(lanes, device="cuda").repeat_interleave(shape.block).int(),
        }  # fmt: skip
        self.count = torch.tensor([self.rows], dtype=torch.int32, device="cuda")
        self.slots = within.nonzero()[:, 0].int()
        self.num_slots = torch.tensor([len(self.slots)], dtype=torch.int32, device="cuda")

    def attention(self) -> Line:
        s, rows = self.shape, self.rows
        q = torch.randn(rows, s.heads, s.head_dim, device="cuda").bfloat16()
        works = draft_block.block_attention_works(
            rows=rows, heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim, block=s.block, window=s.window,
            context=1 << 15, scale=s.head_dim**-0.5, q_stride=s.heads * s.head_dim, table_stride=self.table.shape[1],
            page=s.page, itemsize=2,
        )  # fmt: skip
        spans = draft_block.num_spans(s.window, s.block, 1 << 15)
        m, l, acc = (torch.empty(rows, s.heads, spans, *more, device="cuda") for more in ((), (), (s.head_dim,)))  # noqa: E741
        parts: dict[str, Tensor] = {"m": m, "l": l, "acc": acc, "count": self.count}
        y, plane = torch.empty_like(q), s.kv_heads * PAGE * s.head_dim
        calls: list[Callable[[], object]] = []
        for layer in range(LAYERS):
            k, v = (self.cache.view(-1)[(2 * layer + part) * plane :] for part in range(2))
            given = {"q": q, "k_cache": k, "v_cache": v, "block_table": self.table, **self.where, **parts}
            calls.append(call(draft_block.block_attention_split, works[0], **given))
            calls.append(call(draft_block.block_attention_merge, works[1], y=y, prefix=self.where["prefix"], **parts))
        seen = s.window + s.block - 1
        lines = self.lanes, s.kv_heads, seen, s.head_dim
        kept = [[torch.randn(lines, device="cuda").bfloat16() for _ in range(2)] for _ in range(LAYERS)]
        group = s.heads // s.kv_heads  # query heads of a kv head are rows, so that a fused kernel takes them
        turned = q.view(self.lanes, s.block, s.kv_heads, group, s.head_dim).transpose(1, 2).flatten(2, 3).contiguous()
        mask = self._mask(seen).repeat_interleave(group, 0)

        def peer(layer: int) -> Callable[[], object]:
            k, v = kept[layer]
            return lambda: torch.nn.functional.scaled_dot_product_attention(turned, k, v, mask)

        megabytes = 4e-6 * self.lanes * s.kv_heads * seen * s.head_dim
        peers = [peer(layer) for layer in range(LAYERS)]
        return self._line("attention, a layer", calls, 2, peers, megabytes)

    def _mask(self, seen: int) -> Tensor:
        """[block, seen]: which of the positions from the anchor's window on each row sees."""
        s = self.shape
        first = ANCHOR - s.window + 1
        at, own = torch.arange(first, first + seen, device="cuda"), ANCHOR + torch.arange(s.block, device="cuda")
        return at[None, :] > own[:, None] - s.window

    def convolution(self) -> Line:
        s, groups = self.shape, self.shape.hidden // GROUP
        x, y = (torch.randn(self.rows, s.hidden, device="cuda") for _ in range(2))
        delta = torch.randn(self.rows, TAPS, groups, device="cuda")
        weight = torch.randn(TAPS, s.hidden, device="cuda")
        work = draft_block.block_conv_work(
            rows=self.rows, width=s.hidden, taps=TAPS, group=GROUP, parts=1, x_stride=s.hidden,
            delta_stride=TAPS * groups, y_stride=s.hidden,
        )  # fmt: skip
        where = {name: self.where[name] for name in ("position", "prefix")}
        ours = call(draft_block.block_conv, work, x=x, delta=delta, weight=weight, count=self.count, y=y, **where)

        def peer() -> Tensor:
            rows = x.view(self.lanes, s.block, s.hidden)
            before = torch.nn.functional.pad(rows, (0, 0, 1, 0))[:, :-1]
            factor = weight[None] + delta.repeat_interleave(GROUP, -1)
            first, second = factor.view(self.lanes, s.block, TAPS, s.hidden).unbind(2)
            return rows * first + before * second

        megabytes = 4e-6 * self.rows * (2 * s.hidden + TAPS * groups)
        return self._line("convolution", [ours] * 8, 1, [peer] * 8, megabytes)

    def lattice(self) -> Line:
        s, count = self.shape, len(self.slots)
        unary, gate = torch.randn(count, K, device="cuda"), torch.randn(count, s.rank, device="cuda")
        candidate, token = (
            torch.randint(0, s.vocabulary, shape, dtype=torch.int32, device="cuda")
            for shape in ((count, K), (self.rows,))
        )
        books = [torch.randn(s.vocabulary, s.rank, device="cuda").bfloat16() for _ in range(2)]
        score, greedy = torch.empty(count, K, K, device="cuda"), torch.empty(count, dtype=torch.int32, device="cuda")
        where: dict[str, Tensor] = {name: self.where[name] for name in ("position", "prefix")}
        where |= {"output_row": self.slots, "count": self.num_slots, "score": score}
        works = lattice.lattice_scores_work(slots=count, k=K, rank=s.rank, gate_stride=s.rank)
        ours: list[Callable[[], object]] = [
            call(
                lattice.lattice_scores, works, candidate=candidate, unary=unary, gate=gate, token=token,
                predecessor=books[0], successor=books[1], **where,
            ),
            call(lattice.lattice_walk, lattice.lattice_walk_work(count, K), greedy=greedy, **where),
        ]  # fmt: skip

        def peer() -> Tensor:
            ids = candidate.view(self.lanes, s.block - 1, K)
            anchors = token.view(self.lanes, s.block)[:, :1, None].expand(-1, 1, K)
            before = torch.cat((anchors, ids[:, :-1]), 1)
            gated = books[0][before].float() * gate.view(self.lanes, s.block - 1, 1, s.rank)
            bond = gated @ books[1][ids].float().mT + unary.view(self.lanes, s.block - 1, 1, K)
            best = bond.argmax(-1)
            taken = [best[:, 0, :1]]
            for slot in range(1, s.block - 1):
                taken.append(best[:, slot].gather(1, taken[-1]))
            return torch.cat(taken, 1)

        megabytes = 4e-6 * count * K * s.rank
        return self._line("scores and walk", ours * 8, 2, [peer] * 8, megabytes)

    def _line(self, name: str, calls: Sequence[Any], launches: int, peers: Sequence[Any], megabytes: float) -> Line:
        title = f"{self.shape.name}, {self.lanes} lanes: {name}"
        return Line(title, graph_us(calls).median * launches, graph_us(peers).median, megabytes)


def lines(shapes: Sequence[Shape] = SHAPES, lanes: Sequence[int] = LANES) -> list[Line]:
    found = []
    for shape in shapes:
        for count in lanes:
            case = Case(shape, count)
            found += [case.attention(), case.convolution(), case.lattice()]
    return found


def main() -> None:
    ceiling = read_ceiling().median
    print(f"memory reads at {ceiling / 1e12:.2f} TB/s\n")
    print(f"{'':<40}{'us':>9}{'torch':>9}{'':>8}{'of reads':>9}")
    for line in lines():
        print(line.text(ceiling), flush=True)


if __name__ == "__main__":
    main()
