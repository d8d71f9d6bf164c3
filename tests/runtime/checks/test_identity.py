"""Two bundles compared bit by bit: equal, of another profile, of another ISA level, and not as sealed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.artifacts.reader import Bundle, open_bundle
from tandem.command import run_command
from tandem.device import this_machine
from tandem.errors import BundleCorrupt, BundleMismatch
from tandem.runtime.checks.cli import cli
from tandem.runtime.checks.identity import compare
from tandem.runtime.checks.oracle import differing, sealed


def run(*arguments: object) -> int:
    return run_command(cli, "tandem-check", ["identity", *(str(argument) for argument in arguments)])


def test_a_bundle_equals_itself_on_any_number_of_threads(fp32: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(fp32, fp32, "--threads", 3) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "equal in every bit: 44 digests compared"


def test_another_profile_differs_and_keeps_its_own_oracle(
    fp32: Path, bf16: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fp32, bf16, "--json") == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["scenario"] == "full" and not facts["held"] and facts["compared"] == 44
    assert len(facts["differing"]["a_b"]) == 44
    assert facts["differing"]["a_oracle"] == facts["differing"]["b_oracle"] == []
    assert run(bf16, fp32) == 1
    assert "first: A differs from B: prefill of 96: logits" in capsys.readouterr().out


@pytest.mark.skipif(not this_machine().isa_level.startswith("x86-64-v4"), reason="needs a level below this machine's")
def test_another_isa_level_is_the_same_arithmetic(fp32: Path, tiny_bundle: Callable[..., Path]) -> None:
    lower = tiny_bundle("llama", "fp32", device="cpu-x86-64-v3")
    report = compare(open_bundle(fp32), open_bundle(lower))
    assert report.b.facts()["device"] == "cpu-x86-64-v3" != report.a.facts()["device"]
    assert report.held and len(report.a.found) == 44


def test_a_bundle_that_left_its_oracle(fp32: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = open_bundle(fp32), open_bundle(fp32)
    oracle = sealed(b)
    name, _ = oracle["full"][20]
    oracle["full"][20] = (name, "0" * 64)
    answer(monkeypatch, {b.path: oracle}, only=b)
    report = compare(a, b)
    assert report.columns == {"A differs from B": [], "A from its oracle": [], "B from its oracle": [name]}
    assert not report.held and f"first: B from its oracle: {name}" in report.lines()


def answer(monkeypatch: pytest.MonkeyPatch, oracles: dict[Path, Any], only: Bundle | None = None) -> None:
    """Lets a bundle's oracle.json read as something else."""
    read = Bundle.json

    def altered(self: Bundle, name: str) -> Any:
        changed = name == "oracle.json" and (only is None or self is only)
        return oracles[self.path] if changed else read(self, name)

    monkeypatch.setattr(Bundle, "json", altered)


def test_oracles_with_nothing_in_common(opened: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, {opened.path: {}})
    with pytest.raises(BundleMismatch, match="no scenario in common"):
        compare(opened, opened)


@pytest.mark.parametrize("wrong", [{"load": 3}, {"load": [["logits"]]}, {"load": [["logits", 7]]}])
def test_an_oracle_that_is_none(opened: Bundle, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, {opened.path: wrong})
    with pytest.raises(BundleCorrupt, match=r"oracle\.json"):
        sealed(opened)


def test_what_is_missing_or_not_wanted_differs() -> None:
    assert differing([("a", "1"), ("c", "3")], [("a", "1"), ("b", "2")]) == ["b", "c"]
