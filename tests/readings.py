"""Answers' texts cut into pieces and read, and what comes out, joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.runtime.reading.parts import CallArguments, CallOpened, Content, Part, Reasoning
from tandem.runtime.reading.reader import Reader

SIZES = (1, 2, 3, 7, 50, 1_000_000)


@dataclass
class Read:
    """Texts of one answer's parts; each call is its name and the text of its arguments."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)


def pieces(text: str, sizes: Sequence[int]) -> Iterator[str]:
    """`text` in pieces of `sizes` by turns."""
    pos = turn = 0
    while pos < len(text):
        size = sizes[turn % len(sizes)]
        yield text[pos : pos + size]
        pos, turn = pos + size, turn + 1


def read(reader: Reader, text: str, *sizes: int, cut: bool = False) -> Read:
    found = Read()
    for piece in pieces(text, sizes or (1,)):
        gather(found, reader.push(piece))
    gather(found, reader.end(cut=cut))
    return found


def gather(found: Read, parts: Sequence[Part]) -> None:
    """Adds `parts` to what is `found`; their order is checked here."""
    for part in parts:
        if isinstance(part, Content):
            found.content += part.text
        elif isinstance(part, Reasoning):
            assert not found.content and not found.calls, "thoughts come first"
            found.reasoning += part.text
        elif isinstance(part, CallOpened):
            assert part.index == len(found.calls) and part.id not in found.ids
            found.calls.append((part.name, ""))
            found.ids.append(part.id)
        else:
            assert isinstance(part, CallArguments) and part.index == len(found.calls) - 1
            name, text = found.calls[-1]
            found.calls[-1] = (name, text + part.text)
        assert isinstance(part, CallOpened) or part.text, "a part that says nothing"


def function(name: str, **properties: Any) -> dict[str, Any]:
    """A tool as clients write it."""
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}
