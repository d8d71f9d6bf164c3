"""Whether a program is of the kind that its entry says, told by the fields of io and the regions it is given.

An extend's program in place of a verify's would move a state on by guesses, and a verify's in place of an extend's
would keep nothing, or write factors of more rows than there are; a drafter's could write what texts are made of, and a
draw's touches nothing that a pass keeps. Knows nothing of kernels.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tandem.artifacts.io import IoLayout
from tandem.artifacts.program import Program
from tandem.errors import BundleCorrupt
from tandem.keys import DRAFTER_KINDS, Kind

ANCESTOR, MOVES, FACTORS = "ancestor", "move_target", "factors"
KV, STATE, LOGITS, WEIGHTS = "kv", "state", "logits", "weights"
TAP, TAP_OUT, DRAFT_KV, GUESSES, WALK = "tap", "tap_out", "draft_kv", "draft_token", "draft_walk"
DRAFTERS = (TAP, TAP_OUT, DRAFT_KV, GUESSES, WALK)
"""What is there for a drafter alone."""
WISHES, SEEN, DRAWN = "wish", "seen", "drawn"
DRAWS = (WISHES, SEEN, DRAWN)
"""What is there for draws alone."""
WORDS = {
    ANCESTOR: "ancestors", MOVES: "moves", KV: "the model's K and V", STATE: "states", TAP: "taps to read",
    TAP_OUT: "taps to write", DRAFT_KV: "a drafter's K and V", GUESSES: "guesses", WALK: "a walk", WISHES: "wishes",
    SEEN: "what texts have", DRAWN: "a place for draws",
}  # fmt: skip
"""How messages call what has another name there; the others go by their own."""
ALWAYS = {
    Kind.EXTEND: (TAP_OUT,),
    Kind.VERIFY_CHAIN: (FACTORS, TAP_OUT),
    Kind.VERIFY_TREE: (ANCESTOR, FACTORS, TAP_OUT),
    Kind.COMMIT: (MOVES, FACTORS),
    Kind.DRAFT: (TAP, TAP_OUT, DRAFT_KV, GUESSES),
    Kind.SYNC: (TAP, DRAFT_KV),
    Kind.SAMPLE: DRAWS,
}
"""What every program of a kind is given; factors where a model keeps any, a drafter's where there is one."""
NEVER = {
    Kind.EXTEND: (ANCESTOR, MOVES, FACTORS, TAP, DRAFT_KV, GUESSES, WALK, *DRAWS),
    Kind.VERIFY_CHAIN: (ANCESTOR, MOVES, TAP, DRAFT_KV, GUESSES, WALK, *DRAWS),
    Kind.VERIFY_TREE: (MOVES, TAP, DRAFT_KV, GUESSES, WALK, *DRAWS),
    Kind.COMMIT: (*DRAFTERS, *DRAWS),
    Kind.DRAFT: (ANCESTOR, MOVES, FACTORS, KV, STATE, *DRAWS),
    Kind.SYNC: (ANCESTOR, MOVES, FACTORS, KV, STATE, TAP_OUT, LOGITS, GUESSES, WALK, *DRAWS),
    Kind.SAMPLE: (KV, STATE, FACTORS, WEIGHTS, ANCESTOR, MOVES, *DRAFTERS),
}
"""What none is."""
BLOCK_DRAFT = (DRAFT_KV, GUESSES, WALK)
"""What a draft of blocks is given instead: its rows read no taps and leave none."""


def check(kind: Kind, program: Program, layout: IoLayout, where: str, *, but: Collection[str] = ()) -> None:
    """Raises BundleCorrupt, which names the entry by `where`, for a program of another kind than `kind`.

    `but` names what tells nothing on this device.
    """
    g, given = layout.geometry, _given(program, layout)
    if kind in DRAFTER_KINDS and g.drafter is None:
        raise BundleCorrupt(f"{where}: a drafter's program in a bundle that states none; rebuild the bundle")
    absent = {*(() if g.recurrent_layers else (FACTORS,)), *(() if g.drafter else DRAFTERS)}
    always, never = ALWAYS.get(kind, ()), NEVER.get(kind, ())
    if kind is Kind.DRAFT and g.drafter and g.drafter.block:
        always, never = BLOCK_DRAFT, (*never, TAP, TAP_OUT)
    for name in never:
        if name in given and name not in but:
            raise BundleCorrupt(f"{where}: its program takes {_word(name)}, as no {kind} does; rebuild the bundle")
    for name in always:
        if name not in given and name not in but and name not in absent:
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
