"""Which form of calls and thoughts a model was taught, told from its chat template, and the readers for it.

Knows nothing of HTTP or engines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tandem.runtime.reading.llama import PYTHON_TAG, LlamaCalls
from tandem.runtime.reading.parts import CallReader
from tandem.runtime.reading.reader import Reader
from tandem.runtime.reading.tagged import TaggedCalls
from tandem.runtime.reading.thoughts import BEGIN, END, Thoughts
from tandem.runtime.reading.values import Schema
from tandem.runtime.reading.xml_call import CALL, END_CALL, FUNCTION


class Format(StrEnum):
    """How a model writes its calls, by vLLM's names for the first two of a kind."""

    HERMES = "hermes"
    QWEN_XML = "qwen-xml"
    LLAMA = "llama"

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts around calls that a vocabulary may hold as special tokens."""
        return (PYTHON_TAG,) if self is Format.LLAMA else (CALL, END_CALL)


_PARAMETERS = re.compile(r"""\\?["']parameters\\?["']\s*:""")


def format_of(template: str | None) -> Format:
    """The form of calls that `template` writes; Hermes' where it knows none."""
    template = template or ""
    if FUNCTION in template:
        return Format.QWEN_XML
    if CALL not in template and (PYTHON_TAG in template or _PARAMETERS.search(template)):
        return Format.LLAMA
    return Format.HERMES


def thinks(template: str | None) -> bool:
    """Whether `template` knows blocks of thoughts."""
    return any(marker in (template or "") for marker in (BEGIN, END))


def is_open(prompt: str) -> bool:
    """Whether `prompt` ends inside a block of thoughts, just begun."""
    return prompt.rstrip().endswith(BEGIN)


def is_closed(prompt: str) -> bool:
    """Whether `prompt` ends behind a block of thoughts, so that the answer begins with none."""
    return prompt.rstrip().endswith(END)


@dataclass(frozen=True, slots=True)
class Reading:
    """How an answer's text is read. `tools` None: calls are plain text; `thoughts` None: so are thoughts.

    `tools` maps names to the schemas of their arguments; `thoughts` says whether the prompt has opened the block.
    `special` are markers that the vocabulary holds as special tokens.
    """

    format: Format = Format.HERMES
    tools: Mapping[str, Schema] | None = None
    thoughts: bool | None = None
    parallel: bool = True
    special: frozenset[str] = field(default_factory=frozenset)

    @property
    def markers(self) -> tuple[str, ...]:
        """What the reader must see of the text, special tokens or not."""
        return (*(self.format.markers if self.tools is not None else ()), *((BEGIN, END) if self._thinks else ()))

    @property
    def _thinks(self) -> bool:
        return self.thoughts is not None

    def reader(self) -> Reader:
        """One for one answer."""
        thoughts = None if self.thoughts is None else Thoughts(is_open=self.thoughts)
        unseen = tuple(marker for marker in self.markers if marker in self.special)
        return Reader(thoughts, self._calls(), only_first=not self.parallel, unseen=unseen)

    @property
    def wants_all(self) -> bool:
        """Whether a text is wanted to its end, whatever it holds."""
        return self.parallel or self.tools is None

    def until(self) -> Callable[[str], bool]:
        """What a text's pieces are told to, in turn, to learn whether no more of it is wanted."""
        reader = self.reader()

        def is_enough(text: str) -> bool:
            reader.push(text)
            return reader.finished

        return is_enough

    def _calls(self) -> CallReader | None:
        if self.tools is None:
            return None
        if self.format is Format.LLAMA:
            return LlamaCalls(self.tools)
        return TaggedCalls(self.tools, bare=self.format is Format.QWEN_XML)
