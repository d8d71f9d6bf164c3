"""Texts to ids for all roads: what is no text, and who may run while a long one is encoded."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from tandem.errors import RequestError
from tests.service import ScriptedWorker, scripted_service


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(RequestError, match="not valid UTF-8") as caught:
        scripted_service(ScriptedWorker()).encode("a\udcff", add_special_tokens=True)
    assert (caught.value.status, caught.value.param) == (400, "prompt")


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    """A prompt of megabytes must stop neither the engine nor /health."""
    service, text = scripted_service(ScriptedWorker()), "hello world " * 30_000
    begun, ended = threading.Event(), threading.Event()
    ids: list[int] = []

    def encode() -> None:
        begun.set()
        ids.extend(service.encode(text, add_special_tokens=True))
        ended.set()

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    ticks = 0
    while not ended.is_set():
        time.sleep(1e-3)
        ticks += 1
    thread.join()
    assert bytes(ids) == text.encode()
    assert ticks > 10  # one or two where the encoder held the interpreter


def test_a_tokenizer_that_panics_costs_one_request() -> None:
    """Its expression gives up on this text; the library's panic is no Exception and would end a thread."""
    tokenizer = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = Split(Regex("(a+)+$"), "isolated")
    service = replace(scripted_service(ScriptedWorker()), tokenizer=tokenizer)
    assert service.encode("a", add_special_tokens=True) == (0,)
    with pytest.raises(RequestError, match="tokenizer fails at this prompt") as caught:
        service.encode("a" * 40 + "!", add_special_tokens=True)
    assert (caught.value.status, caught.value.param) == (400, "prompt")
