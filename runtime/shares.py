"""How the rows of a pass are dealt among those who want some.

Knows nothing of what rows are.
"""

from __future__ import annotations

from collections.abc import Sequence


def even_shares(needs: Sequence[int], total: int) -> list[int]:
    """`total` dealt evenly, nobody more than they need: what the modest leave goes to the others. Earlier ones first.

    No other dealing gives the least of those who lack something more (max-min fairness).
    """
    shares, left = [0] * len(needs), total
    for place, i in enumerate(_by_need(needs)):
        shares[i] = min(needs[i], -(-left // (len(needs) - place)))
        left -= shares[i]
    return shares


def quick_shares(needs: Sequence[int], total: int) -> list[int]:
    """A quarter of `total` dealt evenly, so that nobody stands still, the rest to whoever needs least, and so on.

    Those who need little are done soon, and the others hardly later.
    """
    shares = even_shares(needs, -(-total // 4))
    left = total - sum(shares)
    for i in _by_need(needs):
        more = min(needs[i] - shares[i], left)
        shares[i] += more
        left -= more
    return shares


def _by_need(needs: Sequence[int]) -> list[int]:
    return sorted(range(len(needs)), key=lambda i: needs[i])
