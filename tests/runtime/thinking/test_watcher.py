"""The three arms against their definitions over whole texts, and texts on which none may fire."""

from __future__ import annotations

import random
import re
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.runtime.thinking.watcher import TAKEN_BACK, Loop, Pattern, Repeats, Watcher

ROOT = Path(__file__).resolve().parents[3]
PROSE = ["docs/request.md", "docs/measurements.md", "bench/texts/*"]
CODE = ["runtime/*.py", "runtime/thinking/*.py", "compile/models/*.py", "kernels/cpu/attention.cpp"]


def ends_with_a_pattern(ids: Sequence[int]) -> bool:
    """128 tokens or more, four copies or more, of a pattern of up to 64."""
    for n in range(1, 65):
        tail = list(ids[-max(128, 4 * n) :])
        if len(tail) == max(128, 4 * n) and tail[n:] == tail[:-n]:
            return True
    return False


def share_seen_before(ids: Sequence[int], n: int, window: int) -> float:
    if len(ids) < window + n - 1:
        return 0.0
    text = "".join(map(chr, ids))
    ends = range(len(ids) - window + 1, len(ids) + 1)
    return sum(text.find(text[end - n : end]) < end - n for end in ends) / window


def naive(ids: Sequence[int]) -> Loop | None:
    if ends_with_a_pattern(ids):
        return Loop.PATTERN
    if share_seen_before(ids, 16, 256) >= 0.9:
        return Loop.COPIED
    return Loop.STALE if share_seen_before(ids, 4, 1024) >= 0.95 else None


@st.composite
def texts(draw: st.DrawFn) -> list[int]:
    """Stretches of noise, of patterns again and again with a slip now and then, and of copies."""
    chance, ids = random.Random(draw(st.integers(0, 10**6))), list[int]()
    for _ in range(draw(st.integers(1, 4))):
        match draw(st.sampled_from(["noise", "pattern", "copy"])):
            case "noise":
                few = draw(st.sampled_from([1, 2, 30]))
                ids += [65 + chance.randrange(few) for _ in range(chance.randrange(80))]
            case "pattern":
                unit = [
                    65 + chance.randrange(3) for _ in range(draw(st.sampled_from([1, 2, 3, 31, 32, 33, 63, 64, 65])))
                ]
                stretch = unit * (-(-draw(st.integers(100, 270)) // len(unit)))
                if draw(st.booleans()):
                    stretch[chance.randrange(len(stretch))] = 99
                ids += stretch
            case "copy" if ids:
                begin = chance.randrange(len(ids))
                ids += ids[begin : begin + 200]
    return ids[:900]


@settings(max_examples=25)
@given(texts())
def test_patterns(ids: list[int]) -> None:
    pattern, seen = Pattern(), array("q")
    for n, token in enumerate(ids, 1):
        seen.append(token)
        assert pattern.push(seen) == ends_with_a_pattern(ids[:n])


@settings(max_examples=40)
@given(ids=texts(), n=st.integers(1, 5), window=st.integers(1, 40))
def test_shares(ids: list[int], n: int, window: int) -> None:
    repeats, seen = Repeats(n, window), array("q")
    for end, token in enumerate(ids[:200], 1):
        seen.append(token)
        assert repeats.push(seen) == share_seen_before(ids[:end], n, window)


@settings(max_examples=25)
@given(ids=texts(), seed=st.integers(0, 999))
def test_what_is_taken_back_leaves_no_trace(ids: list[int], seed: int) -> None:
    chance, straight, wavering = random.Random(seed), Watcher(), Watcher()
    for token in ids:
        if chance.random() < 0.1:
            astray = chance.randint(1, TAKEN_BACK)
            for _ in range(astray):
                wavering.push(chance.choice([*ids[-3:], 7]))
            for _ in range(astray):
                wavering.pop()
        assert wavering.push(token) == straight.push(token)
    assert wavering._copied.__dict__ == straight._copied.__dict__
    assert wavering._stale.__dict__ == straight._stale.__dict__


def first_loop(ids: Sequence[int]) -> tuple[int, Loop] | None:
    """How many tokens were out when an arm fired, and which."""
    watcher = Watcher()
    for n, token in enumerate(ids, 1):
        if (loop := watcher.push(token)) is not None:
            return n, loop
    return None


def test_each_arm_at_its_exact_token() -> None:
    chance = random.Random(5)
    fresh = [1000 + i for i in range(300)]
    assert first_loop([*fresh, *[1] * 127, 2]) is None
    assert first_loop([*fresh, *[1] * 500]) == (300 + 128, Loop.PATTERN)
    assert first_loop([*fresh, *range(40), *range(40), *range(40), *range(40)]) == (300 + 160, Loop.PATTERN)
    # 100 tokens over and over are no pattern of 64 or fewer, and no gram of them but the first 100 is new. The grams
    # that end in the first 15 tokens of the first copy are new: at 115 + 231 tokens 231 of 256 are old, 0.9 of them.
    assert first_loop([*fresh, *[*range(100)] * 9]) == (300 + 115 + 231, Loop.COPIED)
    sentences = [[chance.randrange(10**6) for _ in range(9)] for _ in range(6)]
    shuffled = [*fresh, *(token for _ in range(300) for token in chance.choice(sentences))]
    found = first_loop(shuffled)
    assert found is not None and found[1] is naive(shuffled[: found[0]]) and naive(shuffled[: found[0] - 1]) is None


def test_the_stale_arm_sees_what_no_longer_copy_shows() -> None:
    """Sentences of 6 tokens in any order: of 16-grams many are new, of 4-grams hardly any."""
    chance = random.Random(8)
    sentences = [[chance.randrange(10**6) for _ in range(6)] for _ in range(12)]
    ids = [token for _ in range(600) for token in chance.choice(sentences)]
    found = first_loop(ids)
    assert found is not None and found[1] is Loop.STALE
    assert naive(ids[: found[0]]) is Loop.STALE and naive(ids[: found[0] - 1]) is None


def pieces(globs: Sequence[str]) -> str:
    return "\n".join(path.read_text() for glob in globs for path in sorted(ROOT.glob(glob)))


def words(text: str) -> list[int]:
    """Words, runs of spaces and single marks, as a tokenizer with a large vocabulary would have them, or nearly."""
    known: dict[str, int] = {}
    return [known.setdefault(word, len(known)) for word in re.findall(r" ?\w+|\n\s*|[^\w\s]|\s", text)]


@pytest.mark.parametrize("globs", [PROSE, CODE])
def test_prose_and_code_are_no_loops(globs: Sequence[str]) -> None:
    ids = words(pieces(globs))
    assert len(ids) > 10_000 and first_loop(ids) is None


@pytest.mark.smollm2
@pytest.mark.parametrize("globs", [PROSE, CODE])
def test_prose_and_code_are_no_loops_in_a_real_vocabulary(smollm2_bundle: Path, globs: Sequence[str]) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2_bundle / "tokenizer.json"))
    encode: Callable[[str], list[int]] = lambda text: tokenizer.encode(text, add_special_tokens=False).ids  # noqa: E731
    ids = encode(pieces(globs))
    assert len(ids) > 10_000 and first_loop(ids) is None
    looping = ids[:700] + encode("Wait, let me think about it again. The list is sorted, so the second is 12. ") * 20
    found = first_loop(looping)
    assert found is not None and found[1] is Loop.PATTERN and 700 + 128 <= found[0] <= 700 + 140
