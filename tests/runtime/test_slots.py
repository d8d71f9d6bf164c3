"""The pool of state slots: no slot in two lanes, none lost, and none at all for a model without a state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.slots import StateSlots

NUM_SLOTS, LANES = 5, 8


@given(st.lists(st.integers(0, LANES - 1), max_size=60))
def test_slots_are_never_shared_nor_lost(turns: list[int]) -> None:
    """Each turn opens its lane where there is a slot for it, or closes it."""
    slots, held = StateSlots(NUM_SLOTS, LANES), dict[int, int]()
    for lane in turns:
        if lane in held:
            slots.release(lane)
            del held[lane]
        elif slots.num_free:
            slots.take(lane)
            held[lane] = slots.table[lane]
        assert len(slots.table) == LANES
        assert [slots.table[i] for i in held] == list(held.values()), "a lane keeps its slot"
        assert len(set(held.values())) == len(held) == NUM_SLOTS - slots.num_free
        assert set(held.values()) <= set(range(NUM_SLOTS))


def test_a_model_without_a_state_has_no_slots() -> None:
    slots = StateSlots(0, LANES)
    slots.take(3)
    slots.release(3)
    assert not slots.table and slots.num_free == 0
