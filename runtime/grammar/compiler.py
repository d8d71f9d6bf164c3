"""From a specification to guides: llguidance over a service's vocabulary, within bounds of size, time and stack.

Imports llguidance when the first grammar is asked for. Knows nothing of HTTP or of how rounds go.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from tandem.errors import CapacityError, RequestError
from tandem.runtime.grammar.guide import MAX_FORCED_BYTES, GrammarGuide, first_line
from tandem.runtime.grammar.specification import Language, Specification
from tandem.runtime.guide import Guide, GuideMaker

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions
    from tokenizers import Tokenizer

Result = TypeVar("Result")

PATIENCE_SECONDS = 5.0
"""How long a request waits for its grammar, on a busy machine; on an idle one llguidance's limits come much earlier."""
STACK_BYTES = 256 * 2**20
"""llguidance recurses where rules refer to rules: some 10 KiB of stack a level. Few of these become memory."""
MAX_ITEMS_IN_ROW = 10_000
"""Rules that may be open at one byte: a schema of a thousand optional keys has four thousand."""

MAX_RULES = 400
"""Rules of a Lark grammar: an error below as many that refer to each other takes llguidance seconds to word."""
_RULE = re.compile(r"^[ \t]*[?!]*[A-Za-z_][^\n]*?:", re.MULTILINE)

UNAVAILABLE = "structured_output_unavailable"


class Grammars:
    """Compiles specifications for one vocabulary. Methods may be called from any thread; one grammar is made at a time.

    `vocab_size` is the model's: ids that the tokenizer does not know are never legal. `end_ids` end an answer.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Collection[int]) -> None:
        self._tokenizer, self._vocab_size, self._end_ids = tokenizer, vocab_size, sorted(end_ids)
        self._vocabulary: LLTokenizer | None = None
        self._making, self._turn = threading.Lock(), threading.Semaphore()

    def compile(self, specification: Specification, param: str | None = None) -> GuideMaker:
        """Makes the guides of lanes under `specification`. Errors name the field `param`.

        RequestError when llguidance is not installed, when the model has no end token to be legal where the grammar is
        complete, and when the specification is wrong, larger than the limits, or allows nothing at all.
        """
        if not self._end_ids:
            raise RequestError("this model has no end token, so a grammar could not end its answers", param=param)
        vocabulary = self._known_vocabulary(param)
        try:
            matcher = self._patiently(lambda: _matcher(vocabulary, specification))
        except ValueError as error:
            reason = first_line(str(error)) or "llguidance refuses it"
            message = f"the {specification.language} cannot be compiled: {reason}"
            raise RequestError(message, param=param, code="invalid_grammar") from error

        def make(prompt: Sequence[int], stop_ids: Collection[int]) -> Guide:
            return GrammarGuide(matcher, vocabulary.vocab_size, param)

        return make

    def _known_vocabulary(self, param: str | None) -> LLTokenizer:
        """llguidance's tokenizer, made for the first grammar: that takes a second."""
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            reason = f"llguidance, which is not installed here ({error}); pip install 'tandem-llm[structured]'"
            raise RequestError(f"structured output needs {reason}", param=param, code=UNAVAILABLE) from error
        with self._making:
            if self._vocabulary is None:
                num_ids = max(self._vocab_size, 1 + max(self._tokenizer.get_vocab().values()))
                try:
                    self._vocabulary = LLTokenizer(self._tokenizer.to_str(), n_vocab=num_ids, eos_token=self._end_ids)
                except ValueError as error:
                    message = f"llguidance cannot read this model's tokenizer: {first_line(str(error))}"
                    raise RequestError(message, param=param, code=UNAVAILABLE) from error
            return self._vocabulary

    def _patiently(self, work: Callable[[], Result]) -> Result:
        """The result of `work` in a thread of its own with a deep stack; an error when it takes too long.

        It is then left behind, and ends when llguidance comes to a limit; until then no other begins.
        """
        if not self._turn.acquire(timeout=PATIENCE_SECONDS):
            raise CapacityError("other requests' grammars are being compiled; try again later")
        results, errors = list[Result](), list[BaseException]()

        def run() -> None:
            try:
                results.append(work())
            except BaseException as error:  # a panic of llguidance is no Exception
                errors.append(error)
            finally:
                self._turn.release()

        thread = threading.Thread(target=run, name="tandem-grammar", daemon=True)
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        except BaseException:
            self._turn.release()
            raise
        finally:
            threading.stack_size(usual)
        thread.join(PATIENCE_SECONDS)
        if errors:
            raise ValueError(str(errors[0])) from errors[0]
        if not results:
            raise ValueError(f"it takes longer than {PATIENCE_SECONDS:g} seconds; make it smaller")
        return results[0]


def _matcher(vocabulary: LLTokenizer, specification: Specification) -> LLMatcher:
    """A matcher at its beginning, whose first mask is sound. ValueError says why there is none."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_items_in_row=MAX_ITEMS_IN_ROW, verbose_errors=False)
    matcher = LLMatcher(vocabulary, _source(specification), log_level=0, limits=limits)
    if not matcher.is_error():
        _try_first_mask(matcher)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


def _source(specification: Specification) -> str:
    """llguidance's own form of a grammar, within its frame. ValueError where that shows it to be wrong."""
    source = _unframed(specification)
    if not specification.frame:
        return source
    if specification.language in (Language.JSON_SCHEMA, Language.REGEX):
        (form,) = json.loads(source)["grammars"]
    else:
        form = {"lark_grammar": source}
    return json.dumps({"grammars": [{"lark_grammar": specification.frame}, form | {"name": "form"}]})


def _unframed(specification: Specification) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    match specification.language:
        case Language.JSON_SCHEMA:
            options = cast("JsonCompileOptions", dict(specification.options))
            return LLMatcher.grammar_from_json_schema(specification.text, defaults=options)
        case Language.REGEX:
            return LLMatcher.grammar_from_regex(specification.text)
        case Language.LARK:
            text = specification.text
        case Language.GRAMMAR:
            # Their converter's search for a first rule takes the square of the blank lines before it.
            text = any_to_lark("\n".join(line for line in specification.text.splitlines() if line.strip()))
    if (num_rules := len(_RULE.findall(text))) > MAX_RULES:
        raise ValueError(f"it has {num_rules} rules; at most {MAX_RULES} are compiled")
    return LLMatcher.grammar_from_lark(text)


def _try_first_mask(matcher: LLMatcher) -> None:
    """ValueError for a grammar that allows nothing; what goes wrong in the matcher it shows itself."""
    mask = matcher.compute_bitmask()
    if not matcher.is_error() and not any(mask):
        raise ValueError("no token of the vocabulary can begin an answer")
    if not matcher.is_error() and len(matcher.compute_ff_bytes()) > MAX_FORCED_BYTES:
        raise ValueError(f"over {MAX_FORCED_BYTES} bytes follow without a choice")
