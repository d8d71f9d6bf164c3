"""`tandem-bundle diff`: each kind of change is told apart in words that name it; exit codes are those of diff(1)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tandem.artifacts import layout
from tandem.artifacts.cli import cli
from tandem.artifacts.diff.change import Change, listed, shown, walk
from tandem.artifacts.diff.prices import price_changes
from tandem.artifacts.diff.verdict import compare
from tandem.artifacts.manifest import TokenizerFacts
from tandem.artifacts.reader import open_bundle
from tandem.command import run_command
from tests.artifacts import sample

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Another sample bundle, its `resolved` changed field by field."""

    def make(*, resolved: dict[str, Any] | None = None, **changes: Any) -> Path:
        target = tmp_path / "other"
        facts = msgspec.structs.asdict(sample.draft(**{k: v for k, v in changes.items() if k != "contents"}))
        sample.write(target, resolved=sample.resolved(facts, **(resolved or {})), **changes)
        return target

    return make


def told(one: Path, two: Path) -> tuple[str, dict[str, str]]:
    """The verdict, and the words by topic."""
    found = compare(open_bundle(one), open_bundle(two))
    words: dict[str, str] = {}
    for change in found.changes:
        words[change.topic] = f"{words[change.topic]}\n{change.words}" if change.topic in words else change.words
    return found.verdict, words


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run_command(cli, "tandem-bundle", ["diff", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_a_copy_is_the_same_bundle(sealed: Path, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, sealed, bundle) == (0, "the same bundle\n", "")


def test_other_prices_are_the_same_text(sealed: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    prices = {"1024": {"extend": {"1": 2.2, "8": 2.4}, "plain": 2.2}, "step_ms": 0.1, "measured": "by hand"}
    code, out, _ = run(capsys, sealed, write(contents={"prices": prices}))
    assert code == 0
    assert out.splitlines() == [
        "same text, other prices: all but the measurements is equal, byte by byte",
        "  prices            context 1024 extend of 8 rows: 3 -> 2.4 ms, 0.80x",
        "                    context 1024 plain: 2 -> 2.2 ms, 1.10x",
    ]


def test_another_machine_alone_is_no_other_content(sealed: Path, write: Write) -> None:
    host = sample.draft().host
    price = msgspec.structs.replace(host.price, product="abacus", cores=7)
    verdict, words = told(sealed, write(host=msgspec.structs.replace(host, price=price)))
    assert verdict.startswith("same text, other prices")
    assert words.keys() == {"host"} and "price.cores" in words["host"] and "-> abacus" in words["host"]


def test_weights_are_compared_tensor_by_tensor(sealed: Path, write: Write) -> None:
    weights = {name: array.copy() for name, array in sample.WEIGHTS.items()}
    weights["b"][63] += 1
    verdict, words = told(sealed, write(contents={"weights": weights}))
    assert verdict == "one checkpoint, other weights; the same configuration"
    assert words == {"weights": "1 of 2 tensors differ; other values: 1, first b"}


def test_another_checkpoint_or_profile_is_said_first(sealed: Path, write: Write, tmp_path: Path) -> None:
    weights = {"a": sample.WEIGHTS["a"].astype(np.uint16), "c": np.zeros(3, np.uint8)}
    changes = {"profile": "int8", "contents": {"weights": weights}}
    verdict, words = told(sealed, write(**changes))
    assert verdict.startswith("one checkpoint in two profiles, bf16 and int8; another configuration")
    assert words["model"] == "profile bf16 -> int8" and "profile" not in words
    assert words["weights"] == (
        '1 of 1 tensors differ; stored otherwise: 1, first a ["F32",3,5] -> ["BF16",3,5]; '
        "in the first only: 1, such as b; in the second only: 1, such as c"
    )
    sample.write(
        tmp_path / "third", resolved=sample.resolved(msgspec.structs.asdict(sample.draft()), checkpoint="0" * 64)
    )
    verdict, words = told(sealed, tmp_path / "third")
    assert verdict.startswith("same text: weights, tokenizer, programs and kernels are equal; another configuration")
    assert words["checkpoint"] == "abababababab -> 000000000000"


def test_code_that_computes_the_same_bits_is_told_from_code_that_does_not(
    sealed: Path, write: Write, tmp_path: Path
) -> None:
    sources = {"kernels/cpu/linear.cpp": "ef" * 32, "kernels/cpu/new.h": "00" * 32, "compile/plan.py": "11" * 32}
    verdict, words = told(sealed, write(contents={"library": b"other", "launches": 3}, resolved={"sources": sources}))
    assert verdict.startswith("same weights, same bits in the identity scenario; another configuration")
    assert words["kernel sources"] == "1 changed: kernels/cpu/linear.cpp\n1 new: kernels/cpu/new.h"
    assert words["compiler sources"] == "1 new: compile/plan.py"
    assert words["programs"].splitlines()[0] == "commit: 1 -> 3 launches"
    shas = hashlib.sha256(sample.LIBRARY).hexdigest(), hashlib.sha256(b"other").hexdigest()
    assert words["kernels"] == f"library {shas[0][:12]} -> {shas[1][:12]}"
    steps = [["prefill: logits", "aa"], ["step: logits", "bb"]]
    for name, last in (("one", "bb"), ("two", "cc")):
        contents = {"library": name.encode(), "oracle": {"full": [steps[0], [steps[1][0], last]]}}
        sample.write(tmp_path / name, contents=contents)
    verdict, words = told(tmp_path / "one", tmp_path / "two")
    assert verdict.startswith("same weights, other bits in the identity scenario; the same configuration")
    assert words["oracle"] == "full: 1 of 2 digests differ, first at step: logits"


def test_flags_tools_and_variables_are_named(sealed: Path, write: Write) -> None:
    tools = {"compiler": "g++ 13.1", "torch": "2.14.0"}
    changes = {"flags": ("-O2", "-g"), "tools": tools, "environment": {"CPATH": "/x"}, "spec": {"family": "llama"}}
    verdict, words = told(sealed, write(resolved=changes))
    assert verdict == ("same text: weights, tokenizer, programs and kernels are equal; another configuration")
    assert words == {
        "spec": "rms_norm_eps 1e-05 -> none",
        "flags": "compiler without -O3, with -O2, -g",
        "tools": "compiler g++ 12.2 -> g++ 13.1\ntorch none -> 2.14.0",
        "environment": "CPATH none -> /x",
    }


def test_the_tokenizer_is_compared_by_its_facts(sealed: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    facts = TokenizerFacts(chat_template="{{ 'ü' }}\nmore", bos_token="<s>", eos_token="</s>", stop_ids=(2,))
    other = write(tokenizer=facts, name="Small", contents={"tokenizer": {"version": "2.0"}})
    verdict, words = told(sealed, other)
    assert verdict.startswith("same weights, same bits in the identity scenario; the same configuration")
    assert words["model"] == "name Tiny -> Small"
    assert words["tokenizer"].splitlines() == [
        "another tokenizer.json",
        "chat_template differs from line 2 on: none -> more",
        "bos_token none -> <s>",
        "stop_ids [2,0] -> [2]",
    ]
    assert run(capsys, sealed, other)[0] == 1


def test_who_built_and_signed_it_is_no_content(
    sealed: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sample.edit_manifest(bundle, lambda m: m.update(built_here=None))
    code, out, _ = run(capsys, sealed, bundle)
    assert code == 0 and out.splitlines() == [
        "the same bundle, but for its origin",
        "  origin            built here -> elsewhere",
    ]


def test_json_says_the_same_with_values(sealed: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, sealed, write(resolved={"flags": ("-O2",)}), "--json")
    facts = json.loads(out)
    assert code == 1 and facts["same_content"] is False
    assert [b["name"] for b in facts["bundles"]] == ["Tiny", "Tiny"]
    assert facts["bundles"][0]["content_id"] == open_bundle(sealed).manifest.content_id
    assert facts["changes"] == [
        {
            "topic": "flags",
            "field": "compiler",
            "before": ["-O3"],
            "after": ["-O2"],
            "words": "compiler without -O3, with -O2",
        }
    ]


def test_what_cannot_be_read_is_trouble(sealed: Path, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, sealed, bundle / "nothing")
    assert (code, out) == (2, "") and err.endswith(
        "nothing: nothing there; a bundle is the folder that tandem-compile wrote\n"
    )
    (bundle / layout.PRICES).write_text("{}")
    code, _, err = run(capsys, bundle, sealed)
    assert code == 2 and err.startswith("error: prices.json: ")


def test_prices_that_one_lacks_and_prices_that_are_none() -> None:
    before = {"64": {"extend": {"1": 1.0, "2": 8.0}, "spec": 3}, "128": {"commit": {}}, "step_ms": 1, "note": "x"}
    after = {"64": {"extend": {"1": 4.0, "2": 2.0, "4": 1.0}, "verify-tree": {}}, "step_ms": "fast", "note": "x"}
    assert [c.words for c in price_changes(before, after)] == [
        "context 64 extend of 1 row: 1 -> 4 ms, 4.00x",
        "context 64 extend: 2 row counts, then 3",
        "context 64 spec is priced in the first only",
        "context 64 verify-tree is priced in the second only",
        "context 128 is priced in the first only",
        "step_ms 1 -> fast",
    ]
    hostile = {"64": {"extend": {"1": None, "2": True, "3": 0, "4": "x"}, "plain": []}, "65": 1}
    for some, others in ((hostile, before), (before, hostile), (hostile, {}), ({}, hostile)):
        assert all(change.words for change in price_changes(some, others))


def test_values_in_few_characters() -> None:
    assert [shown(v) for v in (None, True, 12345, 1e-5, "a\nb", "ab" * 32, [1, None])] == [
        "none", "true", "12,345", "1e-05", "a b", "ab" * 6, "[1,null]",
    ]  # fmt: skip
    assert len(shown("x" * 1000)) == 60
    assert listed("abcdef") == "a, b, c, d and 2 more" and listed("ab") == "a, b"
    assert [c.field for c in walk("t", {"a": {"b": 1, "c": 2}}, {"a": {"b": 1.0, "c": 2, "d": 3}})] == ["a.b", "a.d"]
    assert list(walk("t", [1], [True])) == [Change("t", "", [1], [True], "[1] -> [true]")]
