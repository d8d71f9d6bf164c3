"""Whether a program is of the kind that its entry says, told by the fields of io and the regions it is given.

An extend's program in place of a verify's would move a state on by guesses, and a verify's in place of an extend's
would keep nothing, or write factors of more rows than there are; a draw's touches nothing that a pass keeps. Knows
nothing of kernels.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tandem.artifacts.io import IoLayout
from tandem.artifacts.program import Program
from tandem.errors import BundleCorrupt
from tandem.keys import Kind

ANCESTOR, MOVES, FACTORS = "ancestor", "move_target", "factors"
WISHES, SEEN, DRAWN = "wish", "seen", "drawn"
DRAWS = (WISHES, SEEN, DRAWN)
KEPT = ("kv", "state", FACTORS, "weights")
WORDS = {ANCESTOR: "ancestors", MOVES: "moves", WISHES: "wishes", SEEN: "what texts have", DRAWN: "a place for draws"}
ALWAYS = {
    Kind.VERIFY_TREE: (ANCESTOR, FACTORS),
    Kind.VERIFY_CHAIN: (FACTORS,),
    Kind.COMMIT: (MOVES, FACTORS),
    Kind.SAMPLE: DRAWS,
}
"""What every program of a kind is given; factors where a model keeps any."""
NEVER = {
    Kind.EXTEND: (ANCESTOR, MOVES, FACTORS, *DRAWS),
    Kind.VERIFY_CHAIN: (ANCESTOR, MOVES, *DRAWS),
    Kind.VERIFY_TREE: (MOVES, *DRAWS),
    Kind.COMMIT: DRAWS,
    Kind.SAMPLE: (*KEPT, ANCESTOR, MOVES),
}
"""What none is."""


def check(kind: Kind, program: Program, layout: IoLayout, where: str, *, but: Collection[str] = ()) -> None:
    """Raises BundleCorrupt, which names the entry by `where`, for a program of another kind than `kind`.

    `but` names what tells nothing on this device.
    """
    given = _given(program, layout)
    kept = layout.geometry.recurrent_layers > 0
    for name in NEVER.get(kind, ()):
        if name in given and name not in but:
            raise BundleCorrupt(f"{where}: its program takes {_word(name)}, as no {kind} does; rebuild the bundle")
    for name in ALWAYS.get(kind, ()):
        if name not in given and name not in but and (kept or name != FACTORS):
            raise BundleCorrupt(
                f"{where}: its program takes no {_word(name)}, as every {kind} does; rebuild the bundle"
            )


def _word(name: str) -> str:
    return WORDS.get(name, name)


def _given(program: Program, layout: IoLayout) -> set[str]:
    """Names of the regions, and of the fields of io, that some pointer of `program` leads into."""
    names = [region.name for region in program.regions]
    regions, values = program.params["region"], program.params["value"]
    # Counted and not sorted: a start waits for this, once an entry.
    given = {names[i] for i in np.flatnonzero(np.bincount(regions[regions >= 0]))}
    if "io" in given:
        fields = list(layout.fields.values())  # in the order of their offsets
        offsets = np.array([field.offset for field in fields], np.uint64)
        held = np.bincount(np.searchsorted(offsets, values[regions == names.index("io")], side="right"))
        given |= {fields[i - 1].name for i in np.flatnonzero(held)}
    return given
