"""`tandem-compile corpus`: which text is taken, what the ids are, and what is said of files that are no text."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tandem.artifacts.digest import sha256_bytes
from tandem.artifacts.suffix import META, SEPARATOR, SUFFIXES, TOKENS, open_corpus, read_meta, verify
from tandem.command import run_command
from tandem.compile import texts
from tandem.compile.corpus_cli import command
from tandem.compile.tokenizer import quick_text
from tests.children import environment
from tests.tiny import tokenizer_json

HELLO, LINES = "Hello, world 1!\n", "one\r\ntwo €\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(json.dumps(json.loads(tokenizer_json()), indent=2))
    return path


def build(*words: str | Path) -> int:
    return run_command(command, "tandem-compile corpus", [str(word) for word in words])


def documents(corpus: Path, tokenizer: Path) -> list[str]:
    """The texts of a corpus, decoded."""
    model = Tokenizer.from_str(tokenizer.read_text())
    ids = open_corpus(corpus, read_meta(corpus).tokenizer).tokens.tolist()
    found: list[list[int]] = [[]]
    for token in ids:
        if token == SEPARATOR:
            found.append([])
        else:
            found[-1].append(token)
    assert found.pop() == []
    return model.decode_batch(found, skip_special_tokens=False)


def test_files_and_folders_become_documents(tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture) -> None:
    folder = tmp_path / "texts"
    (folder / "b" / ".hidden").mkdir(parents=True)
    (folder / "z.txt").write_bytes(LINES.encode())
    (folder / "b" / "a.md").write_text("\ufeff" + HELLO)
    (folder / "b" / "empty.py").touch()
    (folder / "b" / "left.bin").write_bytes(b"\xff")
    (folder / "b" / ".hidden" / "x.txt").write_text("hidden")
    (folder / "b" / "link.txt").symlink_to(folder / "z.txt")
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"text": "first", "id": 1}\n\n{"text": ""}\n{"text": "second"}')
    assert build(folder, lines, lines, "-o", tmp_path / "c", "--tokenizer", tokenizer) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'c'}\n" and "4 documents" in err and err.count("\n") == 1
    assert documents(tmp_path / "c", tokenizer) == [HELLO, LINES, "first", "second"]
    verify(tmp_path / "c")


def test_the_digest_is_that_of_a_bundle(tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "a.txt").write_text(HELLO)
    spelled = quick_text(tokenizer.read_text(), "")
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "manifest.json").touch()
    (bundle / "tokenizer.json").write_text(spelled)
    digest = sha256_bytes(spelled.encode())
    for name, given in (("file", tokenizer), ("folder", tokenizer.parent), ("bundle", bundle)):
        assert build(tmp_path / "a.txt", "-o", tmp_path / f"c-{name}", "--tokenizer", given, "--json") == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["tokenizer"] == digest and facts["documents"] == 1 and facts["vocab_size"] == 333
    for part in (META, TOKENS, SUFFIXES):
        assert len({(tmp_path / f"c-{name}" / part).read_bytes() for name in ("file", "folder", "bundle")}) == 1


def test_long_documents_are_read_in_pieces(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "PIECE", 10)
    text = "".join(f"line {i}\n" for i in range(40)) + "€" * 25
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": text}))
    found = list(texts.pieces([tmp_path / "a.txt", tmp_path / "b.jsonl"]))
    assert len(found) > 30 and max(len(piece.text) for piece in found) <= 20
    assert sum(piece.read for piece in found) == sum((tmp_path / name).stat().st_size for name in ("a.txt", "b.jsonl"))
    assert build(tmp_path / "a.txt", tmp_path / "b.jsonl", "-o", tmp_path / "c", "--tokenizer", tokenizer) == 0
    assert documents(tmp_path / "c", tokenizer) == [text, text]


def filled(name: str, data: bytes) -> Callable[[Path], list[str | Path]]:
    def make(folder: Path) -> list[str | Path]:
        (folder / name).write_bytes(data)
        return [folder / name]

    return make


@pytest.mark.parametrize(
    ("files", "part"),
    [
        (lambda folder: [], "FILES"),
        (lambda folder: ["absent"], "absent: no such file"),
        (lambda folder: [folder], "no file of the kinds"),
        (filled("a.txt", b"ok\n\xff\xfe"), "a.txt: not UTF-8"),
        (filled("a.jsonl", b'{"text": "a"}\n{"words": "b"}\n'), "a.jsonl: line 2"),
        (filled("a.jsonl", b"[1]\n"), "line 1"),
        (filled("a.jsonl", b'{"text": 5}\n'), "line 1"),
        (filled("a.jsonl", b'{"text": "\\ud800"}\n'), "line 1"),
        (filled("a.jsonl", b"[" * 100_000), "line 1"),
        (filled("a.txt", b""), "no text"),
    ],
)
def test_what_is_no_text_is_said(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture, files: Callable[[Path], list], part: str
) -> None:
    (tmp_path / "in").mkdir()
    assert build(*files(tmp_path / "in"), "-o", tmp_path / "c", "--tokenizer", tokenizer) == 2
    err = capsys.readouterr().err
    assert part in err and err.count("\n") == 1 and os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize(("content", "code"), [(None, 2), (b"\xff", 2), (b"{}", 1)])
def test_what_is_no_tokenizer_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture, content: bytes | None, code: int
) -> None:
    (tmp_path / "a.txt").write_text(HELLO)
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    assert build(tmp_path / "a.txt", "-o", tmp_path / "c", "--tokenizer", tmp_path) == code
    assert "tokenizer" in capsys.readouterr().err and not (tmp_path / "c").exists()


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("many words, over and over\n" * 400_000)
    words = [str(tmp_path / "in"), "-o", str(tmp_path / "c"), "--tokenizer", str(tokenizer)]
    start = "import sys; from tandem.compile.cli import main; sys.argv[1:] = ['corpus', *sys.argv[1:]]; main()"
    child = subprocess.Popen(
        [sys.executable, "-c", start, *words], env=environment(), stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not any(path.name.startswith(".c.partial") for path in tmp_path.iterdir()):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[1].strip() == "error: interrupted" and child.returncode == 130
    assert os.listdir(tmp_path) == ["in"]
