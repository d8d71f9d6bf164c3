"""Routers by the names that a user gives them.

Knows nothing of what they do.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tandem.errors import UsageError
from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.prices import PriceModel
from tandem.runtime.drafters.chain import CHAIN
from tandem.runtime.meter import Plain
from tandem.runtime.round import Router
from tandem.runtime.router.baselines import BudgetRouter, FixedRouter
from tandem.runtime.router.length import LengthRouter
from tandem.runtime.router.staircut import StairCut

FIXED = "fixed:"
NAMES = ("staircut", "length", "budget", f"{FIXED}ROWS")


def make_router(
    name: str,
    prices: PriceModel,
    *,
    recurrent: bool = False,
    learn_cost: bool = True,
    block: int = 1,
    declined: Callable[[Plain], None] = lambda reason: None,
) -> Router:
    """The router called `name`, one of NAMES. UsageError for another.

    A model drafts in `block`s of so many rows, a pass for all of one; of 1 in chains.
    """
    if name == "staircut":

        def draft_ms(source: str, context_class: int, lanes: int) -> float:
            passes = CHAIN if block == 1 else 1
            return passes * prices.ms(context_class, Kind.DRAFT, lanes * block)

        return StairCut(prices, recurrent=recurrent, declined=declined, draft_prior=draft_ms, learn_cost=learn_cost)
    if name == "length":
        return LengthRouter(declined=declined)
    if name == "budget":
        return BudgetRouter(prices, declined=declined)
    check_name(name)
    return FixedRouter(int(name.removeprefix(FIXED)), declined=declined)


def check_name(name: str) -> None:
    """UsageError for a name that is none of NAMES."""
    rows = re.fullmatch(f"{FIXED}([1-9][0-9]?)", name)
    if name not in NAMES[:-1] and (rows is None or int(rows[1]) > MAX_TREE_ROWS):
        raise UsageError(
            f"--router is {name!r}; it is one of {', '.join(NAMES)}, where ROWS is 1 to {MAX_TREE_ROWS}, the anchor's"
            " row included"
        )
