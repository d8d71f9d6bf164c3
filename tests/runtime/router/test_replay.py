"""Whole texts of the standard library through drafter and router: copies run, fresh text is never slower than plain."""

from __future__ import annotations

import random

import pytest

from tandem.runtime.drafters.lookup import LookupDrafter
from tests.runtime.router.replay import cpu_table, flat_table, replay, words


@pytest.mark.parametrize("module", ["textwrap", "fractions"])
def test_a_verbatim_copy_runs(module):
    text = words(module)[:1500]
    dear = replay(text, text, LookupDrafter(), cpu_table())
    assert dear.per_round >= 8 and dear.steps / dear.ms > 3
    assert replay(text, text, LookupDrafter(), flat_table()).per_round >= 16


@pytest.mark.parametrize("module", ["textwrap", "fractions", "argparse"])
def test_fresh_code_is_not_slower_than_plain(module):
    text = words(module)[:1600]
    assert (tally := replay(text[:50], text[50:], LookupDrafter(), cpu_table())).ms <= 1.03 * tally.steps


@pytest.mark.parametrize("skew", [0.6, 50.0])
def test_text_without_copies_is_not_slower_than_plain(skew):
    """Words drawn alone: pairs repeat, what follows them does not."""
    generator = random.Random(4)
    text = [min(int(generator.paretovariate(skew)), 3000) if skew < 1 else generator.randrange(40) for _ in range(1500)]
    tally = replay(text[:50], text[50:], LookupDrafter(), cpu_table())
    assert tally.ms <= 1.03 * tally.steps


def test_a_table_that_flatters_drafts_is_outgrown():
    """The table says rows are free; every verified row costs a tenth of a step."""
    text = words("textwrap")[:1600]
    tally = replay(
        text[:50], text[50:], LookupDrafter(), flat_table(), lambda kind, rows: 20.0 * (1 + 0.1 * (rows - 1))
    )
    assert tally.ms <= 1.05 * tally.steps
