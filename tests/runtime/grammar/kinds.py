"""Grammars of every language over the small vocabulary, and guides of them.

Each has the source that a test's own matcher reads beside it.
"""

from __future__ import annotations

from llguidance import LLMatcher

from tandem.runtime.grammar import specification
from tandem.runtime.grammar.compiler import Grammars
from tandem.runtime.grammar.guide import GrammarGuide
from tandem.runtime.grammar.specification import Specification
from tandem.runtime.guide import GuideMaker
from tests.grammars import END, PERSON, VOCAB, json_source, tokenizer

GRAMMARS = Grammars(tokenizer(), VOCAB, {END})
LARK = 'start: "say " word (", " word)*\nword: "yes" | "no" | "maybe" | /[0-9]+/'
KINDS: dict[str, tuple[Specification, str]] = {
    "person": (specification.json_schema(PERSON), json_source(PERSON)),
    "object": (specification.any_object(), json_source({"type": "object"})),
    "regex": (specification.regex("(ab|a)*c{3,9}"), LLMatcher.grammar_from_regex("(ab|a)*c{3,9}")),
    "choice": (
        specification.choice(["yes", "no", "nobody", 'a"\n😀']),
        LLMatcher.grammar_from_regex('yes|no|nobody|a"\n😀'),
    ),
    "lark": (specification.lark(LARK), LLMatcher.grammar_from_lark(LARK)),
}
SOURCES = {name: source for name, (_, source) in KINDS.items()}
MAKERS = {name: GRAMMARS.compile(wanted) for name, (wanted, _) in KINDS.items()}


def guide_of(maker: GuideMaker) -> GrammarGuide:
    guide = maker((), frozenset({END}))
    assert isinstance(guide, GrammarGuide)
    return guide
