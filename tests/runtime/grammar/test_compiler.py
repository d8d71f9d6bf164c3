"""Specifications become guides or clear errors, within bounds: hostile ones cost a second and never the process."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from tandem.errors import CapacityError, RequestError
from tandem.runtime.grammar import compiler, specification
from tandem.runtime.grammar.compiler import Grammars
from tandem.runtime.grammar.specification import MAX_BYTES, Specification
from tandem.tree import DraftTree
from tests.grammars import END, INTEGER, VOCAB, ids, spelled, tokenizer

GRAMMARS = Grammars(tokenizer(), VOCAB, {END})
GBNF = 'root ::= "yes" | "no" ws digits\nws ::= [ \\t]*\ndigits ::= [0-9]+\n'


def accepts(wanted: Specification, text: str, *, spelling: Callable[[str], list[int]] = ids) -> bool:
    """Whether `text` and then the end may be an answer, by the masks alone."""
    guide = GRAMMARS.compile(wanted)((), frozenset({END}))
    for token in [*spelling(text), END]:
        if not guide.keeps(token, []):
            return False
        guide.extend([token])
    return True


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        (specification.json_schema(INTEGER), '{"a": 12}', '{"a": true}'),
        (specification.json_schema(json.dumps(INTEGER)), '{"a": -3}', '{"b": 1}'),
        (specification.json_schema(INTEGER), '{"a": 0}', '{"a":0}'),
        (specification.json_schema(INTEGER, specification.COMPACT), '{"a":0}', '{"a": 0}'),
        (specification.json_schema(INTEGER, {"whitespace_pattern": " {0,2}"}), '{  "a" :0}', '{   "a":0}'),
        (specification.json_schema({**INTEGER, "x-guidance": {"key_separator": "="}}), '{"a"=0}', '{"a": 0}'),
        (specification.json_schema({}), "[1, null]", "[1, nul]"),
        (specification.any_object(), '{"x": [1, {}]}', "[1]"),
        (specification.regex(r"\d{4}-\d\d"), "2026-11", "26-11"),
        (specification.choice(["yes", "no"]), "no", "n"),
        (specification.choice(["", 'a"\\\n\té😀', "no"]), 'a"\\\n\té😀', "x"),
        (specification.choice([""]), "", "a"),
        (specification.grammar(GBNF), "no  12", "no"),
        (specification.grammar('start: "a" b\nb: /[0-9]+/'), "a7", "a"),
        (specification.lark('start: "<" %json {"type": "boolean"} ">"'), "<true>", "<tru>"),
    ],
)
def test_each_language(wanted: Specification, good: str, bad: str) -> None:
    # Masks allow the tokenizer's own tokens where bytes are certain and any where they are not.
    assert accepts(wanted, good) or accepts(wanted, good, spelling=spelled)
    assert not accepts(wanted, bad) and not accepts(wanted, bad, spelling=spelled)


DEEP = '{"type": "array", "items":' * 5000 + "{}" + "}" * 5000
NAMES = range(1100)
REFERENCES = {f"{i}": {"properties": {"": {"$ref": f"#/$defs/{i + 1}"}}} for i in NAMES} | {f"{len(NAMES)}": {}}
CHAIN = "".join(f"a{i}: a{i + 1}\n" for i in range(3000)) + 'a3000: "x"\n'
TERMINALS = "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(30)) + 'A30: "x" | "y"\n'
AMBIGUOUS = "start: a a a a a a\na: a a | b | \nb: a | a b | /[a-z]*/\n"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: specification.regex("("), "regex"),
        (lambda: specification.regex("(a{100}){100}"), "follow without a choice"),
        (lambda: specification.regex("a{1000000000}"), "too many expressions|follow without a choice"),
        (lambda: specification.regex("(" * 30000 + ")" * 30000), "invalid regex"),
        (lambda: specification.regex(""), None),
        (lambda: specification.regex("[a-f]{2000}(x|y)*[0-9]{1,500}"), None),
        (lambda: specification.json_schema(DEEP[:MAX_BYTES]), "JSON|recursion"),
        (lambda: specification.json_schema("[" * 60000), "recursion|JSON"),
        (lambda: specification.json_schema('"no object"'), "object"),
        (lambda: specification.json_schema("{nonsense"), "key must be|JSON|line 1"),
        (lambda: specification.json_schema({"$ref": "#"}), ""),
        (lambda: specification.json_schema({"$ref": "https://127.0.0.1:9/schema.json"}), "not present|retriev"),
        (lambda: specification.json_schema({"type": "integer", "minimum": 5, "maximum": 3}), "[Uu]nsatisfiable"),
        (lambda: specification.json_schema({"type": "no such type"}), "type"),
        (lambda: specification.json_schema({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}), None),
        (lambda: specification.json_schema({"$defs": REFERENCES, "$ref": "#/$defs/0"}), None),
        (lambda: specification.json_schema({"type": "string", "minLength": 10**9}), None),
        (lambda: specification.json_schema({"type": "array", "items": {}, "minItems": 10**9}), None),
        (
            lambda: specification.json_schema({"items": {"const": "a"}, "minItems": 10**6, "type": "array"}),
            "[Ii]tems|choice",
        ),
        (lambda: specification.json_schema({"multipleOf": 999999937, "type": "integer"}), "fuel"),
        (lambda: specification.grammar("no grammar at all"), ""),
        (lambda: specification.grammar(""), "root"),
        (lambda: specification.grammar("root ::= " + "(" * 20000), ""),
        (lambda: specification.lark("start: " + "(" * 20000), "nested"),
        (lambda: specification.lark("start: nothing"), "unknown name"),
        (lambda: specification.lark("start: start"), ""),
        (lambda: specification.lark(TERMINALS + "start: A0"), "too big"),
        (lambda: specification.lark(CHAIN + "start: a0"), "rules; at most"),
        (lambda: specification.lark(CHAIN[: CHAIN.index("a398:")] + "start: a0"), "unknown name"),
        (lambda: specification.lark("start: b\nb: " + "b " * 20000), ""),
        (lambda: specification.grammar("\n" * 60000), ""),
        (lambda: specification.lark(AMBIGUOUS), None),
        (lambda: specification.choice([f"word {i}" for i in range(4000)]), None),
        (lambda: specification.choice([]), "nothing to choose"),
        (lambda: specification.regex("a" * (MAX_BYTES + 1)), f"at most {MAX_BYTES}"),
        (lambda: specification.regex("\ud800"), "UTF-8"),
    ],
)
def test_hostile_specifications_end_soon(make: Callable[[], Specification], reason: str | None) -> None:
    """`reason` None: it may be compiled. Texts and times are llguidance's; that one comes at all, and soon, is ours."""
    GRAMMARS.compile(specification.regex("a"))
    began = time.process_time()
    try:
        guide = GRAMMARS.compile(make(), "guided_x")((), frozenset({END}))
    except RequestError as error:
        assert reason is not None and error.status == 400
        assert len(str(error)) < 500 and "\n" not in str(error)
        assert re.search(reason, str(error)), error
    else:
        assert reason is None
        guide.cut(DraftTree.root(1))
        assert np.isfinite(guide.applied(np.zeros(VOCAB, np.float32), [])).any()
    assert time.process_time() - began < 4


def test_a_missing_extra_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"pip install 'tandem-llm\[structured\]'") as caught:
        Grammars(tokenizer(), VOCAB, {END}).compile(specification.any_object(), "response_format")
    assert (caught.value.param, caught.value.status) == ("response_format", 400)


def test_a_model_without_end_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="no end token"):
        Grammars(tokenizer(), VOCAB, ()).compile(specification.any_object())


def test_ids_beyond_the_tokenizer_and_several_ends() -> None:
    """All end tokens are legal where the grammar is complete, and none before; ids of the model alone never are."""
    ends = {END, 5}
    guide = Grammars(tokenizer(), 5000, ends).compile(specification.regex(".?"))((), frozenset(ends))
    row = np.zeros(5000, np.float32)
    begun = np.flatnonzero(np.isfinite(guide.applied(row, [])))
    assert ends < set(begun.tolist()) and begun.max() < tokenizer().get_vocab_size()
    said = ids("x")
    assert np.flatnonzero(np.isfinite(guide.applied(row, said))).tolist() == sorted(ends)
    needing = Grammars(tokenizer(), 5000, ends).compile(specification.regex("ab"))((), frozenset(ends))
    assert not ends & set(np.flatnonzero(np.isfinite(needing.applied(row, []))).tolist())


def test_a_vocabulary_of_words_with_byte_fallback() -> None:
    """SentencePiece's kind, as Llama 2 and Mistral have it."""
    words = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "{", "}", '"', ":", "a", "▁1", "1"]
    merges = [("▁", "1")]
    made = Tokenizer(
        models.BPE({word: i for i, word in enumerate(words)}, merges, byte_fallback=True, unk_token="<unk>")
    )
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens([AddedToken("<unk>", special=True), AddedToken("</s>", special=True)])
    grammars = Grammars(made, len(words), {1})
    guide = grammars.compile(specification.json_schema(INTEGER))((), frozenset({1}))
    for piece in ["{", '"', "a", '"', ":", "▁1", "1", "}", "</s>"]:
        token = words.index(piece)
        assert guide.keeps(token, []), piece
        guide.extend([token])


def test_one_grammar_at_a_time_and_none_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compilation that hangs is left behind with an error; the next waits for it, but not for ever either."""
    monkeypatch.setattr(compiler, "PATIENCE_SECONDS", 0.1)
    grammars, release, seen = Grammars(tokenizer(), VOCAB, {END}), threading.Event(), list[int]()
    before = threading.stack_size()

    def hanging(wanted: Specification) -> str:
        seen.append(threading.stack_size())
        release.wait(20)
        return "start: /a/"

    monkeypatch.setattr(compiler, "_source", hanging)
    with pytest.raises(RequestError, match=r"takes longer than 0\.1 seconds"):
        grammars.compile(specification.regex("a"))
    with pytest.raises(CapacityError, match="try again"):
        grammars.compile(specification.regex("a"))
    release.set()
    monkeypatch.setattr(compiler, "PATIENCE_SECONDS", 20.0)
    grammars.compile(specification.regex("a"))
    assert len(seen) == 2 and threading.stack_size() == before


def test_a_panic_of_the_library_is_an_error_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        pass

    def panicking(wanted: Specification) -> str:
        raise Panic("index out of bounds")

    monkeypatch.setattr(compiler, "_source", panicking)
    with pytest.raises(RequestError, match="cannot be compiled: index out of bounds"):
        GRAMMARS.compile(specification.regex("a"), "grammar")


def test_a_tokenizer_that_llguidance_cannot_read() -> None:
    odd = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(RequestError, match="cannot read this model's tokenizer") as caught:
        Grammars(odd, 2, {1}).compile(specification.regex("a"))
    assert caught.value.code == "structured_output_unavailable"
