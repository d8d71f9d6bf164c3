"""Limits: what holds, what does not and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.compile.gate.limits import faults, record, require
from tandem.errors import CompileError, QualityError
from tests.compile.gate.sample import figures


@pytest.mark.parametrize(
    "sound",
    [
        figures(),
        figures(prose=1.5, code=0.5),
        figures(prose=2.05),
        figures(confident=(1000, 990)),
        figures(confident=(0, 0)),
        figures(unique=0.65),
        figures(unique=1.0),
    ],
)
def test_what_stays_within_its_limits_holds(sound: Any) -> None:
    quality = record(sound)
    assert quality.held and faults(quality) == []
    require(quality, "int8")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (figures(prose=2.0501), "loss on prose rises by 0.0501 nats, at most 0.05 wanted"),
        (figures(prose=2.04, code=1.3), "loss on code rises by 0.3000 nats"),
        (figures(confident=(1000, 989)), "0.9890 of the confident choices are the same, at least 0.99 wanted"),
        (figures(unique=0.6), "new 4-grams in free answers falls by 0.2000, at most 0.15 wanted"),
    ],
)
def test_what_does_not_is_named_with_found_and_limit(bad: Any, words: str) -> None:
    quality = record(bad)
    assert not quality.held and len(faults(quality)) == 1
    with pytest.raises(QualityError) as caught:
        require(quality, "int4")
    message = str(caught.value)
    assert words in message and message.startswith("int4 costs too much") and "--accept-quality" in message
    assert isinstance(caught.value, CompileError) and "\n" not in message


def test_all_that_fails_is_named() -> None:
    assert len(faults(record(figures(prose=9.0, confident=(10, 1), unique=0.0)))) == 3


def test_a_loss_that_is_no_number_is_never_a_record() -> None:
    with pytest.raises(QualityError, match="loss on code is no number"):
        record(figures(code=None))


def test_figures_are_kept_to_six_digits() -> None:
    quality = record(figures(prose=2.012345678, unique=2 / 3))
    assert quality.texts[0].loss == 2.012346 and quality.generation.unique_4grams == 0.666667
    assert quality.limits == {
        "loss_rise": 0.05,
        "confident_gap": 1.0,
        "confident_agreement": 0.99,
        "unique_4gram_drop": 0.15,
    }
