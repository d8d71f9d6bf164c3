"""`tandem-bundle` as a user meets it: stdout the result, one line on stderr, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import click
import pytest

from tandem.artifacts import cli as door
from tandem.artifacts import layout, suffix
from tandem.artifacts.cli import cli
from tandem.artifacts.reader import open_bundle
from tandem.artifacts.suffix_folder import StoreFolder
from tandem.command import run_command
from tandem.keys import TARGET_KINDS
from tests.artifacts import corpora, sample


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run_command(cli, "tandem-bundle", [str(a) for a in arguments])
    return code, *capsys.readouterr()


def test_inspect_says_what_it_is_and_where_it_may_run(sealed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "inspect", sealed)
    manifest = open_bundle(sealed).manifest
    assert (code, err) == (0, "")
    for words in (
        "Tiny: llama, profile bf16",
        "12 cases compared, 0 differ",
        "64 tokens of context",
        "here        optimal",
        "built on this machine",
        "measured: by hand",
        "extend: 1 rows 2.0 ms, 8 rows 3.0 ms",
        manifest.content_id,
        manifest.build_id,
        *TARGET_KINDS,
    ):
        assert words in out


def test_inspect_gives_the_same_as_json(sealed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", sealed, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["geometry"]["kv_planes"] == [[2, 64], [2, 64]]
    assert facts["fit"] == {"grade": "optimal", "reasons": []}
    assert facts["files"][layout.WEIGHTS] == (sealed / layout.WEIGHTS).stat().st_size
    assert facts["prices"]["classes"] == {"1024": {"extend": {"1": 2.0, "8": 3.0}}}
    assert facts["origin"] == "here" and len(facts["entries"]) == len(TARGET_KINDS)


def test_inspect_says_why_it_may_not_run_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = sample.draft().host
    validity = type(host.validity)(arch="vax", isa_level="generic", flags=(), abi=host.validity.abi, cuda=None)
    sample.write(tmp_path / "tiny", host=type(host)(validity=validity, price=host.price))
    code, out, _ = run(capsys, "inspect", tmp_path / "tiny")
    assert code == 0 and "here        refused" in out and "host.validity.arch: vax wanted" in out


def test_verify_accepts_what_is_as_sealed(sealed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "verify", sealed)
    assert (code, err) == (0, "") and "as sealed" in out
    code, out, _ = run(capsys, "verify", sealed, "--json")
    assert code == 0 and json.loads(out)["content_id"] == open_bundle(sealed).manifest.content_id


def test_verify_names_a_flipped_byte_of_the_weights(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundle / layout.WEIGHTS
    data = bytearray(path.read_bytes())
    data[-5] ^= 0x10
    path.write_bytes(data)
    code, out, err = run(capsys, "verify", bundle, "--json")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {layout.WEIGHTS}: sha256 ") and err.count("\n") == 1


def test_verify_wants_a_word_for_code_from_elsewhere(
    sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    code, _, err = run(capsys, "verify", sealed)
    assert code == 1 and "not built on this machine" in err
    assert run(capsys, "verify", sealed, "--trust-native")[0] == 0
    code, out, _ = run(capsys, "inspect", sealed)
    assert code == 0 and "comes from elsewhere" in out


def test_verify_reads_every_byte_of_a_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "corpus"
    corpora.write(path, [[1, 2, 3], [4, 5]])
    size = (path / suffix.TOKENS).stat().st_size + (path / suffix.SUFFIXES).stat().st_size
    code, out, err = run(capsys, "verify", path)
    said = f"{path}: a corpus, 2 documents of 5 ids, {size} bytes as sealed, of the tokenizer {corpora.TOKENIZER}\n"
    assert (code, out, err) == (0, said, "")
    code, out, _ = run(capsys, "verify", path, "--json")
    found = {"path": str(path), "bytes": size, "documents": 2, "ids": 5, "tokenizer": corpora.TOKENIZER}
    assert code == 0 and json.loads(out) == found
    code, _, err = run(capsys, "verify", path, "--trust-native")
    assert code == 2 and "--trust-native is for bundles" in err and err.count("\n") == 1


@pytest.mark.parametrize("name", [suffix.META, suffix.TOKENS, suffix.SUFFIXES])
def test_verify_names_the_damaged_file_of_a_corpus(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "corpus"
    corpora.write(path, [[1, 2, 3], [4, 5]])
    whole = (path / name).read_bytes()
    flipped = bytearray(whole)
    flipped[-6] ^= 1
    for damaged in (bytes(flipped), whole[:-4], None):
        if damaged is None:
            (path / name).unlink()
        else:
            (path / name).write_bytes(damaged)
        code, out, err = run(capsys, "verify", path)
        assert (code, out) == (1, "") and name in err and err.count("\n") == 1


def test_verify_of_a_suffix_store_says_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    StoreFolder(tmp_path / "store", corpora.TOKENIZER, 50).close()
    code, _, err = run(capsys, "verify", tmp_path / "store")
    assert code == 1 and "a suffix-store, not a corpus" in err


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_what_is_no_bundle_is_one_line(tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, command, tmp_path)
    assert (code, out) == (1, "") and err.startswith("error: manifest.json: missing") and err.count("\n") == 1
    code, _, err = run(capsys, command)
    assert code == 2 and "Missing argument 'BUNDLE'" in err and err.count("\n") == 1


def test_bad_prices_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "PRICES", [1, 2])
    sample.write(tmp_path / "tiny")
    for command in ("inspect", "verify"):
        code, _, err = run(capsys, command, tmp_path / "tiny")
        assert code == 1 and err == "error: prices.json: no JSON object; copy or compile the bundle again\n"


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes other packages' commands appear as if they were installed."""

    def install(**values: str) -> None:
        points = EntryPoints(EntryPoint(name, value, door.ENTRY_POINTS) for name, value in values.items())
        monkeypatch.setattr(door, "entry_points", lambda **wanted: points.select(**wanted))

    return install


@click.command("greet")
@click.argument("who")
def greet(who: str) -> None:
    """Says good day."""
    click.echo(f"good day, {who}")


def test_other_packages_add_commands(register: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    register(greet=f"{__name__}:greet")
    assert run(capsys, "greet", "you") == (0, "good day, you\n", "")
    code, out, _ = run(capsys, "--help")
    assert code == 0 and "Says good day." in out and "Check every byte" in out
    code, _, err = run(capsys, "gret")
    assert code == 2 and err.startswith("error: No such command 'gret'.")


def test_a_command_of_theirs_does_not_take_the_name_of_ours(
    register: Callable[..., None], sealed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register(verify=f"{__name__}:greet")
    assert "as sealed" in run(capsys, "verify", sealed)[1]


def test_a_command_without_its_extra_says_what_to_install(
    register: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    register(carve="nowhere_to_be_found.carve:command [stone,chisel]")
    remedy = "pip install 'tandem-llm[stone,chisel]'"
    for arguments in (["a", "--deep"], ["--help"], []):
        code, out, err = run(capsys, "carve", *arguments)
        assert (code, out) == (2, "")
        assert err == f"error: tandem-bundle carve needs nowhere_to_be_found, which is not installed: {remedy}\n"
    code, out, _ = run(capsys, "--help")
    assert code == 0 and f"Needs {remedy}." in out
