"""A chain of guesses goes on without the host: what a draft guessed becomes the rows of the draft behind it.

One launch between two drafts. Each goes on from its own tap, which it leaves where the row before left its own. Knows
nothing of how guesses are made.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import let_next, wait


@kernel(
    "!counts !token !position !lane !slot !prefix !tap !tap_out !output_row <draft_token <draft_logit <draft_lse "
    ">chain_token >chain_logit >chain_lse"
)
@triton.jit
def chain_next(
    counts, token, position, lane, slot, prefix, tap, tap_out, output_row, draft_token, draft_logit, draft_lse,
    chain_token, chain_logit, chain_lse,
    OUTPUTS: tl.constexpr, MOST: tl.constexpr, TOP: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The io fields of a draft and of what it gave -> those of a draft of its outputs' guesses, a position further on.

    What it gave is kept as the guesses of the depth that `counts` says: chain_token int32 and chain_logit fp32
    [depths, OUTPUTS, TOP], chain_lse fp32 [depths, OUTPUTS]. MOST and WIDE are OUTPUTS and TOP as powers of two. Every
    output's row has left a tap. Grid (1,).
    """
    let_next(PDL)
    wait(PDL)
    num, depth = tl.load(counts + 1), tl.load(counts + 4)
    output, k = tl.arange(0, MOST), tl.arange(0, WIDE)[None, :]
    inside = output < num
    row = tl.load(output_row + output, mask=inside, other=0)
    guess = tl.load(draft_token + output * TOP, mask=inside, other=0)
    behind = tl.load(position + row, mask=inside, other=0) + 1
    own = tl.load(lane + row, mask=inside, other=0)
    left = tl.load(tap_out + row, mask=inside, other=0)
    each, there = output[:, None] * TOP + k, inside[:, None] & (k < TOP)
    tokens = tl.load(draft_token + each, mask=there, other=0)
    logits = tl.load(draft_logit + each, mask=there, other=0.0)
    sums = tl.load(draft_lse + output, mask=inside, other=0.0)
    tl.debug_barrier()  # all is read before any of it is written
    tl.store(chain_token + depth * OUTPUTS * TOP + each, tokens, mask=there)
    tl.store(chain_logit + depth * OUTPUTS * TOP + each, logits, mask=there)
    tl.store(chain_lse + depth * OUTPUTS + output, sums, mask=inside)
    tl.store(token + output, guess, mask=inside)
    tl.store(position + output, behind, mask=inside)
    tl.store(lane + output, own, mask=inside)
    tl.store(slot + output, behind, mask=inside)
    tl.store(prefix + output, behind + 1, mask=inside)
    tl.store(tap + output, left, mask=inside)
    tl.store(tap_out + output, left, mask=inside)
    tl.store(output_row + output, output, mask=inside)
    tl.store(counts, num)
    tl.store(counts + 4, depth + 1)


def chain_next_work(outputs: int, top: int) -> Work:
    """Work of `chain_next` over fields for up to `outputs` rows with `top` guesses each."""
    most, wide = triton.next_power_of_2(outputs), triton.next_power_of_2(top)
    return work((1,), num_warps=1, OUTPUTS=outputs, MOST=most, TOP=top, WIDE=wide)
