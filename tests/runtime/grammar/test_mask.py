"""What a mask leaves of a row, against its definition id by id."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.grammar.mask import Mask

VALUES = st.sampled_from([0.0, -1.5, 3.25, 7.0, -np.inf, np.inf, np.nan])


@given(
    rows=st.lists(st.tuples(VALUES, st.booleans()), min_size=1, max_size=70),
    more=st.integers(0, 40),
)
def test_what_may_not_come_is_never_drawn(rows: list[tuple[float, bool]], more: int) -> None:
    logits, mask = np.array([value for value, _ in rows], np.float32), Mask(len(rows) + more)
    for token, (_, may) in enumerate(rows):
        mask.words[token // 32] |= np.uint32(may << token % 32)
    for token in range(len(rows), len(rows) + more):  # of the tokenizer, not of the model
        mask.words[token // 32] |= np.uint32(1 << token % 32)
    before, changed = logits.copy(), mask.applied(logits)
    assert np.array_equal(logits, before, equal_nan=True)
    assert [mask.allows(token) for token in range(len(rows))] == [may for _, may in rows]
    if not any(may for _, may in rows):
        assert changed is None
        return
    assert changed is not None and changed.dtype == np.float32
    level = all(np.isnan(value) or value == -np.inf for value, may in rows if may)
    wanted = [(0.0 if level else value) if may else -np.inf for value, may in rows]
    assert np.array_equal(changed, np.array(wanted, np.float32), equal_nan=True)
