"""What the kernels of the delta rule share: a state in registers, and the arithmetic of one row on it.

The order of every sum is written out, so that no launch, no layout and no compiler moves a bit. A program holds some
columns of one value head's state: PARTS threads share a column and take its rows in turn, four at a time, until each
has EACH, one register each. A state is a tuple of EACH tensors [THREADS], one element a thread; so is a key or a query,
the same in every column. Knows nothing of lanes, rows of a pass or grids.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from tandem.kernels.cuda.kv import power_of_two

WARP = 32


@triton.jit
def places(block, PARTS: tl.constexpr, COLUMNS: tl.constexpr, WARPS: tl.constexpr):
    """Of each thread of block `block` of a head, [THREADS]: its part, and its column of the head."""
    i = tl.arange(0, PARTS * COLUMNS * WARPS)
    return i // COLUMNS % PARTS, (block * WARPS + i // (PARTS * COLUMNS)) * COLUMNS + i % COLUMNS


@triton.jit
def _row_of(i, PARTS: tl.constexpr):
    """The row of element `i` of a thread whose part is 0; part p's stands 4 p further."""
    return i // 4 * (4 * PARTS) + i % 4


@triton.jit
def _held(part, column, there, row, DK: tl.constexpr, DV: tl.constexpr):
    """Whether `row` behind those of the parts before is one of a state, and is `there`."""
    return (column < tl.where(there, DV, 0)) & (part * 4 + row < DK)


@triton.jit
def empty_state(THREADS: tl.constexpr, EACH: tl.constexpr):
    """All zeros."""
    held = ()
    for _ in tl.static_range(EACH):
        held = held + (tl.zeros((THREADS,), tl.float32),)  # noqa: RUF005 - Triton knows no star
    return held


@triton.jit
def load_state(
    state, part, column, there, PARTS: tl.constexpr, EACH: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr
):  # fmt: skip
    """A head's state [DK, DV] at `state`; zeros where not `there`, a scalar."""
    held = ()
    at = state + part * (4 * DV) + column
    for i in tl.static_range(EACH):
        row = _row_of(i, PARTS)
        inside = _held(part, column, there, row, DK, DV)
        held = held + (tl.load(at + row * DV, mask=inside, other=0.0),)  # noqa: RUF005
    return held


@triton.jit
def store_state(
    state, held, part, column, there, PARTS: tl.constexpr, EACH: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr
):  # fmt: skip
    """The reverse of `load_state`; writes nothing where not `there`."""
    at = state + part * (4 * DV) + column
    for i in tl.static_range(EACH):
        row = _row_of(i, PARTS)
        tl.store(at + row * DV, held[i], mask=_held(part, column, there, row, DK, DV))


@triton.jit
def load_head(x, DK: tl.constexpr, BK: tl.constexpr):
    """A key or query [DK] at `x`, [BK]: as it comes from memory, each element in one thread; `deal` is next."""
    i = tl.arange(0, BK)
    return tl.load(x + i, mask=i < DK, other=0.0)


@triton.jit
def _halves(x):
    """A tuple of tensors [..., 2] -> their first halves, then their second ones."""
    first, second = (), ()
    for i in tl.static_range(len(x)):
        one, other = tl.split(x[i])
        first, second = first + (one,), second + (other,)  # noqa: RUF005
    return first + second


@triton.jit
def deal(x, PARTS: tl.constexpr, COLUMNS: tl.constexpr, WARPS: tl.constexpr, EACH: tl.constexpr):
    """[PARTS * EACH] of `load_head` -> EACH tensors [THREADS]: each thread's own elements.

    Goes through shared memory, so that memory itself is asked once for what all columns need. What the threads of a
    column read there at once stands side by side, in banks of its own.
    """
    x = tl.permute(tl.reshape(x, (EACH // 4, PARTS, 4)), (1, 0, 2))
    x = tl.broadcast_to(tl.reshape(x, (1, PARTS, 1, EACH)), (WARPS, PARTS, COLUMNS, EACH))
    THREADS: tl.constexpr = WARPS * PARTS * COLUMNS
    # One reshape: the compiler finds the threads' layout through it, and moves nothing but the head itself.
    if EACH == 4:
        dealt = (tl.reshape(x, (THREADS, 2, 2)),)
    elif EACH == 8:
        dealt = (tl.reshape(x, (THREADS, 2, 2, 2)),)
    elif EACH == 16:
        dealt = (tl.reshape(x, (THREADS, 2, 2, 2, 2)),)
    else:
        dealt = (tl.reshape(x, (THREADS, 2, 2, 2, 2, 2)),)
    for bit in tl.static_range(5):
        if 1 << bit < EACH:
            dealt = _halves(dealt)
    return dealt


@triton.jit
def _with_neighbour(x, NEAR: tl.constexpr):
    """[THREADS] -> each element plus the one NEAR away: a sum of two, the same to the bit in either order."""
    pairs = tl.reshape(x, (x.shape[0] // (2 * NEAR), 2, NEAR))
    sums = tl.broadcast_to(tl.sum(pairs, 1, keep_dims=True), pairs.shape)
    return tl.reshape(sums, x.shape)


@triton.jit
def recall(held, x, PARTS: tl.constexpr, COLUMNS: tl.constexpr, WARPS: tl.constexpr, EACH: tl.constexpr):
    """S^T x, [THREADS], the same in all threads of a column.

    Four chains over a thread's rows, added in pairs; then the sums of a column's threads, in pairs.
    """
    a, b, c, d = held[0] * x[0], held[1] * x[1], held[2] * x[2], held[3] * x[3]
    for i in tl.static_range(4, EACH, 4):
        a, b = tl.fma(held[i], x[i], a), tl.fma(held[i + 1], x[i + 1], b)
        c, d = tl.fma(held[i + 2], x[i + 2], c), tl.fma(held[i + 3], x[i + 3], d)
    total = (a + b) + (c + d)
    for bit in tl.static_range(5):
        if 1 << bit < PARTS:
            total = _with_neighbour(total, COLUMNS << bit)
    return total


@triton.jit
def faded(held, decay, EACH: tl.constexpr):
    """S * decay."""
    new = ()
    for i in tl.static_range(EACH):
        new = new + (held[i] * decay,)  # noqa: RUF005
    return new


@triton.jit
def added(held, k, u, EACH: tl.constexpr):
    """S + k u^T."""
    new = ()
    for i in tl.static_range(EACH):
        new = new + (tl.fma(k[i], u, held[i]),)  # noqa: RUF005
    return new


@triton.jit
def stepped(
    held, k, q, v, decay, beta,
    PARTS: tl.constexpr, COLUMNS: tl.constexpr, WARPS: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """(the new state, u, o) of a row; v, u and o [THREADS] by column, decay and beta scalars."""
    held = faded(held, decay, EACH)
    u = beta * (v - recall(held, k, PARTS, COLUMNS, WARPS, EACH))
    held = added(held, k, u, EACH)
    return held, u, recall(held, q, PARTS, COLUMNS, WARPS, EACH)


@dataclass(frozen=True, slots=True)
class StateTiles:
    """How a head's state [dk, dv] is dealt to threads: by its widths alone, never by what is done with it."""

    dk: int
    dv: int

    @property
    def each(self) -> int:
        """Rows that a thread holds: 32 registers, and few sums to be exchanged. Multiplies in fours."""
        return max(4, min(32, power_of_two(self.dk) // 4))

    @property
    def parts(self) -> int:
        return -(-power_of_two(self.dk) // self.each)

    @property
    def columns(self) -> int:
        """Of a warp, side by side: 32 bytes of a row at 128 rows, what memory is read in."""
        return WARP // self.parts

    @property
    def warps(self) -> int:
        """Few, so that the blocks of all heads spread evenly; more than one, so that keys are not read too often."""
        return min(4, power_of_two(-(-self.dv // self.columns)))

    @property
    def blocks(self) -> int:
        """Programs of a head."""
        return -(-self.dv // (self.columns * self.warps))

    def constants(self) -> dict[str, int]:
        """The kernels' constants of this."""
        return {
            "DK": self.dk, "DV": self.dv, "PARTS": self.parts, "COLUMNS": self.columns, "WARPS": self.warps,
            "EACH": self.each,
        }  # fmt: skip
