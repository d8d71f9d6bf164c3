"""What a compiled kernel does before it waits for the one before: which of its pointers are read, and how."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

WAIT = "griddepcontrol.wait"
_ROWS = (
    "count",
    "token",
    "row",
    "output_row",
    "position",
    "lane",
    "slot",
    "prefix",
    "parent",
    "ancestor",
    "block_table",
    "state_slot",
)
_MOVES = ("move_lane", "move_row", "move_target", "source", "target")
GIVEN = frozenset((*_ROWS, *_MOVES))
"""What a pass is given: nothing that it launches writes there."""
_REGISTER = re.compile(r"%[a-z]+\d+")


@dataclass(frozen=True, slots=True)
class Early:
    """Names of pointers behind which something is read, or only asked into L2, before the first wait."""

    read: frozenset[str]
    asked: frozenset[str]
    writes: bool


def before_wait(ptx: str, pointers: list[str]) -> Early:
    """What comes before the first wait in PTX of a kernel of `pointers`, those left out not among them.

    Follows each pointer through the registers that are made of it, in the order of the text: there is no loop there.
    """
    before = ptx.split(WAIT)[0]
    behind: dict[str, set[str]] = defaultdict(set)
    read, asked = set[str](), set[str]()
    for line in before.splitlines():
        words = line.strip()
        if param := re.match(r"ld\.param\.\w+\s+(%\w+), \[\w+_param_(\d+)\]", words):
            number = int(param[2])
            behind[param[1]] = {pointers[number]} if number < len(pointers) else set()
            continue
        registers = _REGISTER.findall(words)
        addresses = re.findall(r"\[\s*(%\w+)", words)  # of a copy into shared memory, its source comes last
        if "global" in words and addresses and not re.search(r"\bst\.global", words):
            (asked if "prefetch" in words else read).update(behind[addresses[-1]])
            inside = _REGISTER.findall(words.split("[")[0])
            for register in inside:  # what was loaded is no address of where it came from
                behind[register] = set()
        elif registers:
            first, *others = registers
            behind[first] = set().union(*(behind[register] for register in others))
    return Early(frozenset(read), frozenset(asked), "st.global" in before)
