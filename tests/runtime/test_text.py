"""Text from ids: whole characters, stops across any border, nothing after the end, whatever the grouping."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tandem.runtime.text import MAX_HELD_TOKENS, TextStream, WindowDecoder
from tests.service import IM_END, IM_START, byte_tokenizer, real_checkpoint

BYTES = byte_tokenizer()
REPLACEMENT = "\ufffd"
HARD = [
    "日本語のテキスト",
    "👩‍👩‍👧‍👦 family",
    "e\u0301 é ñ",
    "🏳️‍🌈",
    "naïve — “quotes”",
    "\x00\x7f\u0080",
    "\U0010ffff",
    "𝄞",
    "  a\n\n b",
]
SOME_TEXT = st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(HARD))


def fallback_tokenizer() -> Tokenizer:
    """SentencePiece's kind: words that begin with ▁, and bytes for what has no token."""
    words = ["<unk>", "<s>", *[f"<0x{b:02X}>" for b in range(256)], "▁", *"abcdefghijklmnopqrstuvwxyz", "é", "日"]
    tokenizer = Tokenizer(
        models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


def word_tokenizer() -> Tokenizer:
    words = ["[UNK]", "un", "##want", "##ed", "run", "##ning", ",", "the", "'", "s"]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


FALLBACK, WORDS = fallback_tokenizer(), word_tokenizer()


def grouped(ids: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """`ids` in consecutive blocks of `sizes`, the rest in one."""
    blocks, start = [], 0
    for size in sizes:
        blocks.append(list(ids[start : start + size]))
        start += size
    return [*blocks, list(ids[start:])]


def deltas(tokenizer: Tokenizer, blocks: Sequence[Sequence[int]], stops: Sequence[str] = ()) -> list[str]:
    """What each block gave out, the flush last; nothing more is pushed after the end."""
    stream = TextStream(tokenizer, stops, {IM_END})
    found = []
    for block in blocks:
        text, stopped = stream.push(block)
        found.append(text)
        if stopped:
            break
    return [*found, stream.flush()]


@given(SOME_TEXT, st.lists(st.integers(1, 5)))
def test_joined_deltas_are_the_text(text: str, sizes: list[int]) -> None:
    """BUG-50: each byte its own token, so every character beyond ASCII comes in pieces."""
    found = deltas(BYTES, grouped(list(text.encode()), sizes))
    assert "".join(found) == text
    assert text.count(REPLACEMENT) == sum(delta.count(REPLACEMENT) for delta in found)


@given(st.lists(st.one_of(st.integers(0, 257), st.sampled_from([0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80]))))
def test_joined_deltas_of_any_ids_are_their_decode_but_for_an_unfinished_tail(ids: list[int]) -> None:
    stream = TextStream(BYTES)
    joined = "".join(stream.push([i])[0] for i in ids) + stream.flush()
    whole = BYTES.decode(ids)
    assert whole.startswith(joined)
    assert whole[len(joined) :].strip(REPLACEMENT) == ""
    assert len(whole) - len(joined) <= 3


@given(SOME_TEXT, st.lists(st.integers(1, 4)))
@example("\ufffd\ufffda\ufffd", [2, 3])
def test_byte_fallback_vocabularies(text: str, sizes: list[int]) -> None:
    ids = FALLBACK.encode(text, add_special_tokens=False).ids
    found = deltas(FALLBACK, grouped(ids, sizes))
    assert "".join(found) == FALLBACK.decode(ids)


@given(st.lists(st.integers(0, 9)))
def test_vocabularies_whose_decoder_looks_at_neighbours(ids: list[int]) -> None:
    assert "".join(deltas(WORDS, [[i] for i in ids])) == WORDS.decode(ids)


def test_a_window_never_grows_with_the_text() -> None:
    class Counting:
        """Keeps how many ids each decode was given."""

        def __init__(self) -> None:
            self.sizes: list[int] = []

        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            self.sizes.append(len(ids))
            return FALLBACK.decode(ids)

        def id_to_token(self, token_id: int) -> str | None:
            return FALLBACK.id_to_token(token_id)

        def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
            return FALLBACK.get_added_tokens_decoder()

    counting = Counting()
    decoder = WindowDecoder(counting, frozenset())  # type: ignore[arg-type]
    for token in FALLBACK.encode("日 😀 a" * 200 + "\ufffd" * 50).ids + [2 + 0xF0] * 100 + [2 + 0xC3] * 100:
        decoder.add(token)
    assert max(counting.sizes) <= 4 * MAX_HELD_TOKENS


def test_an_emoji_over_two_blocks_is_one_delta() -> None:
    """BUG-50, first case."""
    assert deltas(BYTES, [[0xF0, 0x9F], [0x98, 0x80]]) == ["", "😀", ""]


def test_a_stream_goes_on_after_bytes_that_are_no_text() -> None:
    """BUG-50: it must not go silent for good."""
    assert deltas(BYTES, [[0xF0, 0x9F], [0x41], [0x42]]) == ["", f"{REPLACEMENT}A", "B", ""]


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK])
def test_text_cut_inside_a_character_ends_cleanly(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a😀", add_special_tokens=False).ids
    for cut in range(1, 4):
        assert "".join(deltas(tokenizer, [ids[:-cut]])).strip() == "a"


def test_special_tokens_are_skipped_and_added_ones_are_not() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<tool>", "→x"])
    ids = [IM_START, 0x61, 258, 259, 9999]
    assert "".join(deltas(tokenizer, [ids])) == "a<tool>→x" == tokenizer.decode(ids)


def test_a_stop_early_in_a_long_block() -> None:
    """BUG-35."""
    stream = TextStream(BYTES, ["END"])
    assert stream.push(b"x END a bcdefghijkl") == ("x ", True)
    assert stream.flush() == ""
    assert stream.num_tokens == len("x END")


def test_a_stop_over_a_token_border_and_a_stop_with_spaces() -> None:
    """BUG-50, third case: tokens decoded alone would never match."""
    assert deltas(BYTES, [b"ab", b"Xc"], ["X"]) == ["ab", "", ""]
    assert deltas(BYTES, [b"one ", b" t", b"wo"], ["  two"]) == ["one", "", "", ""]


def test_nothing_after_an_end_token() -> None:
    """BUG-40: A, EOS, B, C in one block."""
    stream = TextStream(BYTES, (), {IM_END})
    assert stream.push([0x41, IM_END, 0x42, 0x43]) == ("A", True)
    assert stream.push([0x44]) == ("", True)
    assert (stream.flush(), stream.num_tokens) == ("", 2)
    assert TextStream(BYTES).push([0x41, IM_END, 0x42, 0x43]) == ("ABC", False)  # ignore_eos


def test_text_that_only_began_like_a_stop_comes_out() -> None:
    assert deltas(BYTES, [b"go EN", b"TER", b" EN"], ["END"]) == ["go ", "ENTER", " ", "EN"]


def test_the_stop_that_is_complete_first_wins_and_of_those_the_longest() -> None:
    assert deltas(BYTES, [b"xabcd"], ["abcd", "bc"]) == ["xa", ""]
    assert deltas(BYTES, [b"xabc"], ["bc", "abc", "c"]) == ["x", ""]


LETTERS = st.text("ab", max_size=30)


@given(LETTERS, st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3), st.lists(st.integers(1, 6)))
def test_stops_are_found_as_by_looking_at_every_prefix(text: str, stops: list[str], sizes: list[int]) -> None:
    """The oracle: the shortest prefix that ends with a stop, cut before the longest such stop."""
    ends = [n for n in range(len(text) + 1) if any(text[:n].endswith(stop) for stop in stops)]
    expected, consumed = text, len(text)
    if ends:
        consumed = ends[0]
        expected = text[: consumed - max(len(stop) for stop in stops if text[:consumed].endswith(stop))]
    stream = TextStream(BYTES, stops)
    given_out = ""
    for block in grouped(list(text.encode()), sizes):
        delta, stopped = stream.push(block)
        given_out += delta
        assert expected.startswith(given_out), "text was given out that a stop takes back"
        if stopped:
            break
    assert given_out + stream.flush() == expected
    assert (stream.stopped, stream.num_tokens) == (bool(ends), consumed)


@given(LETTERS, st.text("ab", min_size=1, max_size=4))
def test_no_more_is_held_back_than_may_become_a_stop(text: str, stop: str) -> None:
    stream = TextStream(BYTES, [stop])
    out, stopped = stream.push(list(text.encode()))
    if not stopped:
        held = stream.flush()
        assert out + held == text
        assert stop.startswith(held)


@given(SOME_TEXT.map(lambda text: text + "終わり" + text), st.lists(st.integers(1, 7)))
def test_grouping_moves_nothing(text: str, sizes: list[int]) -> None:
    ids = list(text.encode())
    one = TextStream(BYTES, ["終わり", "🌈"])
    many = TextStream(BYTES, ["終わり", "🌈"])
    whole = one.push(ids)[0]
    parts = "".join(many.push(block)[0] for block in grouped(ids, sizes))
    assert (whole + one.flush(), one.num_tokens) == (parts + many.flush(), many.num_tokens)


@pytest.mark.smollm2
def test_smollm2_text_survives(smollm2_gguf: Path) -> None:
    """All that its vocabulary can write comes back; 21 bytes have no token there and vanish on encoding."""
    tokenizer = Tokenizer.from_str(real_checkpoint(smollm2_gguf).tokenizer_json)
    for text in HARD:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert "".join(deltas(tokenizer, [[i] for i in ids])) == tokenizer.decode(ids)
    assert "".join(deltas(tokenizer, [tokenizer.encode("日本語 👩‍👧 é").ids])) == "日本語 👩‍👧 é"


@pytest.mark.parametrize(("min_tokens", "wanted"), [(0, ""), (1, ""), (2, "ab"), (3, "ab"), (4, "ababx"), (6, "ababx")])
def test_stops_that_are_complete_too_early_end_nothing(min_tokens: int, wanted: str) -> None:
    for by in (1, 2, 5):
        stream = TextStream(BYTES, ["ab"], min_tokens=min_tokens)
        text = ""
        for start in range(0, 5, by):
            text += stream.push([*b"ababx"][start : start + by])[0]
        assert (text + stream.flush(), stream.stopped) == (wanted, min_tokens < 4)


def test_a_stop_may_begin_before_min_tokens_and_overlap_an_early_one() -> None:
    stream = TextStream(BYTES, ["aa"], min_tokens=2)
    assert stream.push([*b"aaa"]) == ("a", True)


@given(LETTERS, st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3), st.lists(st.integers(1, 6)))
def test_stops_that_are_kept_are_the_end_of_the_text(text: str, stops: list[str], sizes: list[int]) -> None:
    """The oracle: the shortest prefix that ends with a stop; nothing is held back."""
    ends = [n for n in range(len(text) + 1) if any(text[:n].endswith(stop) for stop in stops)]
    expected = text[: ends[0]] if ends else text
    stream, given_out, consumed = TextStream(BYTES, stops, keep_stop=True), "", 0
    for block in grouped(list(text.encode()), sizes):
        delta, stopped = stream.push(block)
        given_out, consumed = given_out + delta, consumed + len(block)
        assert given_out == expected[:consumed]
        if stopped:
            break
    assert (given_out + stream.flush(), stream.stopped) == (expected, bool(ends))


@pytest.mark.parametrize("keep_stop", [False, True])
@pytest.mark.parametrize("skipped", [False, True])
def test_special_tokens_and_the_stop_token_are_text_only_where_it_is_asked_for(keep_stop: bool, skipped: bool) -> None:
    for tokenizer, special, ids in ((BYTES, IM_START, list(b"xy")), (FALLBACK, 1, FALLBACK.encode("xy").ids)):
        text, name = ("xy", "<|im_start|>") if tokenizer is BYTES else (FALLBACK.decode(ids), "<s>")
        stream = TextStream(tokenizer, (), {special}, keep_stop=keep_stop, skip_special_tokens=skipped)
        found, stopped = stream.push([*ids, special, *ids])
        assert (found + stream.flush(), stopped) == (text + (name if keep_stop and not skipped else ""), True)
        stream = TextStream(tokenizer, skip_special_tokens=skipped)
        found = "".join(stream.push([i])[0] for i in [*ids, special, *ids]) + stream.flush()
        assert found == tokenizer.decode([*ids, special, *ids], skip_special_tokens=skipped)
