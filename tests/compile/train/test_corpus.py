"""Where text comes from and what becomes of it: licences, filters, near copies, the split, the files of a corpus."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tandem.compile.train import packages
from tandem.compile.train.chat import exchanges
from tandem.compile.train.corpus import build_corpus, read_corpus
from tandem.compile.train.documents import Collector, Document, clean, is_code, is_prose
from tandem.errors import CheckpointError, UsageError

METADATA = "Name: {name}\nVersion: 1.2\nLicense-Expression: {licence}\n\n"
FUNCTION = '''def {name}(first, second):
    """Return {what} of the first and the second number.

    Both numbers may be negative, and {name} says so.
    """
    result_of_{name} = first {sign} second
    print("{name} was asked", first, second)
    return result_of_{name}


class {name}Caller:
    """Calls {name} with numbers that it was made with."""

    def __init__(self, number_for_{name}):
        self.number_for_{name} = number_for_{name}
'''


def source(number: int) -> str:
    return FUNCTION.format(name=f"operation{number}", what=f"outcome {number}", sign="+-*"[number % 3])


def wheel(folder: Path, name: str, files: dict[str, str], licence: str = "MIT") -> None:
    with zipfile.ZipFile(folder / f"{name}-1.2-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}-1.2.dist-info/METADATA", METADATA.format(name=name, licence=licence))
        for path, text in files.items():
            archive.writestr(path, text)


def sdist(folder: Path, name: str, files: dict[str, str]) -> None:
    with tarfile.open(folder / f"{name}-1.2.tar.gz", "w:gz") as archive:
        for path, text in ({"PKG-INFO": METADATA.format(name=name, licence="MIT")} | files).items():
            entry = tarfile.TarInfo(f"{name}-1.2/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "archives"
    root.mkdir()
    wheel(root, "alpha", {f"alpha/m{i}.py": source(i) for i in range(120)} | {"alpha/_vendor/x.py": source(900)})
    wheel(root, "beta", {"beta/copy.py": source(3).replace("Both", "These"), "beta/new.py": source(901)})
    wheel(root, "copyleft", {"copyleft/m.py": source(902)}, licence="GPL-3.0-or-later")
    sdist(root, "gamma", {"docs/guide.rst": "Guide\n=====\n\n" + "There is much to say about it, and more. " * 9})
    return root


def build(root: Path, output: Path) -> Path:
    options = {"vocab_size": 400, "package_bytes": 100_000, "tokenizer_bytes": 50_000}
    build_corpus(packages.archives(root), output, say=lambda line: None, **options)  # type: ignore[arg-type]
    return output


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: BSD-3-Clause", "BSD-3-Clause"),
        ("License: MIT License", "MIT License"),
        (
            "License: see file\nClassifier: License :: OSI Approved :: Apache Software License",
            "Apache Software License",
        ),
        ("License-Expression: LGPL-2.1", ""),
        ("License: BSD\nClassifier: License :: OSI Approved :: GNU General Public License (GPL)", ""),
        ("License-Expression: EPL-2.0 OR BSD-3-Clause", ""),
        ("Name: silent", ""),
    ],
)
def test_only_permissive_licences_are_taken(metadata: str, licence: str) -> None:
    assert packages.licence_of(message_from_string(metadata)) == licence


def test_refused_folders_say_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'GPL-2\.0' is not one of the permissive ones"):
        packages.folder("x", "1", "GPL-2.0", tmp_path)
    with pytest.raises(UsageError, match="no such folder"):
        packages.folder("x", "1", "MIT", tmp_path / "none")


def test_what_becomes_a_document(folder: Path) -> None:
    documents = list(Collector(100_000).collect(packages.archives(folder)))
    assert {document.package for document in documents} == {"alpha", "beta", "gamma"}
    assert not [document for document in documents if "_vendor" in document.path]
    assert [d.path for d in documents if d.package == "beta"] == ["beta/new.py"]  # the other is a near copy
    assert {d.domain for d in documents} == {"packages", "docs"}
    small = list(Collector(2_000).collect(packages.archives(folder)))
    assert 0 < sum(len(d.text) for d in small if d.package == "alpha") <= 2_000


def test_installed_packages_are_read(tmp_path: Path) -> None:
    (tmp_path / "delta-1.2.dist-info").mkdir()
    (tmp_path / "delta-1.2.dist-info/METADATA").write_text(METADATA.format(name="delta", licence="MIT"))
    (tmp_path / "delta-1.2.dist-info/RECORD").write_text("delta.py,,\nlogo.png,,\n")
    (tmp_path / "delta.py").write_text(source(1))
    (found,) = packages.installed(tmp_path)
    assert (found.name, found.version, found.licence) == ("delta", "1.2", "MIT")
    assert list(found.files()) == [("delta.py", source(1).encode())]


def test_texts_are_cleaned_and_judged() -> None:
    assert clean(b"\xef\xbb\xbf# Copyright someone\n# All rights\nx = 1  \r\n\n\n\n\n\ny = 2") == "x = 1\n\n\ny = 2\n"
    assert clean(b"# A plain comment\nx = 1\n") == "# A plain comment\nx = 1\n"
    assert clean(b"\xff\xfe") == ""
    assert is_code(source(1))
    for refused in ("x = 1\n", source(1) + "print 'two'\n", "# Generated by hand\n" + source(1), source(1) + "# GPL\n"):
        assert not is_code(refused)
    assert not is_code(source(1) + f"data = '{'x' * 600}'\n")
    assert is_prose("Words and more words stand here. " * 9)  # a paragraph may be one line
    assert not is_prose("1 + 2 == 3; " * 40)


def test_exchanges_come_from_documented_functions() -> None:
    for number in range(6):
        document = Document("packages", "alpha", "m.py", False, source(number) + "\n\ndef bare(x):\n    return x\n")
        ((question, answer),) = exchanges(document)
        assert "```python\ndef operation" in question + answer
        assert f"outcome {number}" in question + answer
        assert "bare" not in question + answer


def test_the_same_packages_give_the_same_corpus(folder: Path, tmp_path: Path) -> None:
    one, other = build(folder, tmp_path / "one"), build(folder, tmp_path / "other")
    for name in ("tokens.xz", "corpus.json", "tokenizer.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_documents_stand_whole_on_one_side(folder: Path, tmp_path: Path) -> None:
    corpus = read_corpus(build(folder, tmp_path / "corpus"))
    words = Tokenizer.from_str(corpus.tokenizer_json)
    documents = list(Collector(100_000).collect(packages.archives(folder)))
    held = {document.text for document in documents if document.held_out}

    def texts(ids: np.ndarray) -> list[str]:
        return words.decode(ids.tolist(), skip_special_tokens=False).split("<|endoftext|>")[:-1]

    train = texts(corpus.train)
    assert {text for text in train if "im_start" not in text} == {d.text for d in documents} - held
    assert {t for domain in ("packages", "docs") for t in texts(corpus.held_out[domain])} == held
    assert any(text.startswith("<|im_start|>user\n") and text.endswith("<|im_end|>\n") for text in train)
    facts = corpus.facts
    assert facts["train_tokens"] == len(corpus.train) == sum(facts["train_tokens_by_domain"].values())
    assert [s["name"] for s in facts["sources"]] == ["alpha", "beta", "gamma"]
    assert sum(s["bytes"] for s in facts["sources"]) == sum(len(d.text.encode()) for d in documents)


def test_a_damaged_corpus_is_refused(folder: Path, tmp_path: Path) -> None:
    root = build(folder, tmp_path / "corpus")
    facts = json.loads((root / "corpus.json").read_text())
    (root / "corpus.json").write_text(json.dumps(facts | {"sha256": "0"}))
    with pytest.raises(CheckpointError, match="copy both again"):
        read_corpus(root)
    (root / "tokens.xz").write_bytes(b"no")
    with pytest.raises(CheckpointError, match="damaged"):
        read_corpus(root)
    (root / "tokens.xz").unlink()
    with pytest.raises(CheckpointError, match=r"tokens\.xz is missing"):
        read_corpus(root)
