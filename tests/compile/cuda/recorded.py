"""A captured graph written down by hand, as `GraphSource` reads one, and kernels it may launch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tandem.compile.cuda.graph_reader import KERNEL, KnownKernel, Span
from tandem.compile.cuda.graph_source import Edge, KernelCall

NORM = KnownKernel("norm", b"cubin of norm", ("*fp32", "*i32", "*bf16"))
GLUE = KnownKernel("glue", b"cubin of glue", ("*fp32", "*fp32", "i32"))
KNOWN = {0x100: NORM, 0x200: GLUE}
SPANS = [Span("io", 0x10000, 0x100), Span("scratch", 0x20000, 0x1000), Span("weights", 0x40000, 0x4000)]


def word(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, "little")


def norm(x: int, count: int, y: int, *hidden: int, grid: tuple[int, int, int] = (4, 2, 1)) -> KernelCall:
    return KernelCall(0x100, "norm", grid, (128, 1, 1), 512, tuple(map(word, (x, count, y, *hidden))))


def glue(x: int, y: int, n: int) -> KernelCall:
    arguments = (word(x), word(y), word(n, 4), word(0), word(0))
    return KernelCall(0x200, "glue", (3, 1, 1), (256, 1, 1), 0, arguments)


@dataclass
class Recorded:
    """Nodes by handle in the order the driver lists them."""

    calls: dict[int, KernelCall]
    links: list[Edge]
    kinds: dict[int, int] = field(default_factory=dict)

    def nodes(self) -> list[int]:
        return list(self.calls)

    def node_type(self, node: int) -> int:
        return self.kinds.get(node, KERNEL)

    def kernel(self, node: int) -> KernelCall:
        return self.calls[node]

    def edges(self) -> list[Edge]:
        return self.links

    def change(self, node: int, **fields: object) -> Recorded:
        """The graph with one kernel node changed."""
        changed = self.calls[node]._replace(**fields)  # type: ignore[arg-type]
        return replace(self, calls=self.calls | {node: changed})


def chain() -> Recorded:
    """norm -> glue -> norm, behind each other by programmatic and full edges; handles 7, 5, 9."""
    calls = {
        7: norm(0x20000, 0x10040, 0x20800, 0, 0),
        5: glue(0x20800, 0x20C00, 96),
        9: norm(0x20C00, 0x10040, 0x20000, 0, 0),
    }
    return Recorded(calls, [Edge(5, 9, 1, 0, 1), Edge(7, 5)])
