"""Publishing is one step: nothing half-written is ever at the target, whoever interrupts or competes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.artifacts import layout, staging
from tandem.artifacts.manifest import GeometryRecord, ProofSummary, TokenizerFacts, encode
from tandem.artifacts.reader import open_bundle
from tandem.artifacts.writer import BundleWriter
from tandem.errors import BundleCorrupt, TandemError, UsageError
from tests.artifacts import sample
from tests.children import environment


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def note(bundle: Path) -> str:
    open_bundle(bundle, verify="digests")
    return (bundle / layout.REPORT).read_text()


def test_what_is_published_is_sound_read_only_and_deletable(tmp_path: Path) -> None:
    manifest = sample.write(tmp_path / "tiny")
    assert open_bundle(tmp_path / "tiny", verify="digests").manifest == manifest
    assert names(tmp_path) == ["tiny"]
    for path in (tmp_path / "tiny").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o444)


def test_two_builds_of_one_configuration_are_equal_byte_by_byte(tmp_path: Path) -> None:
    one, two = sample.write(tmp_path / "one"), sample.write(tmp_path / "two")
    assert encode(one) == encode(two)
    other = sample.write(tmp_path / "other", resolved=sample.resolved(msgspec.structs.asdict(one), flags=("-O2",)))
    assert other.build_id != one.build_id and other.content_id != one.content_id


@pytest.mark.parametrize("stop", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_nothing(tmp_path: Path, stop: type[BaseException]) -> None:
    with pytest.raises(stop), BundleWriter(tmp_path / "deep" / "tiny") as writer:
        sample.fill(writer)
        raise stop
    assert names(tmp_path) == []


def test_an_unsound_draft_is_not_published(tmp_path: Path) -> None:
    outside = TokenizerFacts(chat_template=None, bos_token=None, eos_token=None, stop_ids=(100,))
    with pytest.raises(BundleCorrupt, match="outside the vocabulary"):
        sample.write(tmp_path / "tiny", tokenizer=outside)
    with pytest.raises(BundleCorrupt, match="exact arithmetic with differing cases"):
        sample.write(tmp_path / "tiny", proof=ProofSummary(cases=2, differing=1))
    page = replace(sample.GEOMETRY, page_bytes=4095)
    with pytest.raises(BundleCorrupt, match=r"page_bytes 4095 is no multiple of .* - at `\$\.geometry`"):
        sample.write(tmp_path / "tiny", geometry=GeometryRecord.of(page))
    with pytest.raises(BundleCorrupt, match="two entries with one key"):
        sample.write(tmp_path / "tiny", entries=sample.draft().entries * 2)
    with BundleWriter(tmp_path / "tiny") as writer, pytest.raises(BundleCorrupt, match=r"weights.*: required"):
        writer.publish(sample.draft(entries=()))
    assert names(tmp_path) == []


def test_a_link_left_in_the_staged_folder_is_not_published(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with BundleWriter(tmp_path / "tiny") as writer, pytest.raises(BundleCorrupt, match=r"tokenizer.json: a link"):
        sample.fill(writer)
        writer.path(layout.TOKENIZER).unlink()
        writer.path(layout.TOKENIZER).symlink_to(tmp_path / "tokenizer.json")
        writer.publish(sample.draft())
    assert names(tmp_path) == ["tokenizer.json"]
    assert (tmp_path / "tokenizer.json").stat().st_mode & 0o200, "what the link pointed at is untouched"


@pytest.mark.parametrize("name", ["../x", "/x", layout.MANIFEST])
def test_a_file_cannot_be_written_outside(tmp_path: Path, name: str) -> None:
    with BundleWriter(tmp_path / "tiny") as writer, pytest.raises(UsageError):
        writer.add(name, b"")


def test_an_existing_target_is_refused_before_any_work(tmp_path: Path) -> None:
    sample.write(tmp_path / "tiny")
    with pytest.raises(UsageError, match="tiny exists"):
        sample.write(tmp_path / "tiny", note="second")
    assert note(tmp_path / "tiny") == "sample"
    sample.write(tmp_path / "tiny", note="second", replace=True)
    assert note(tmp_path / "tiny") == "second"
    assert names(tmp_path) == ["tiny"]


def test_only_a_bundle_or_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    sample.write(tmp_path / "photos")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years")
    with pytest.raises(UsageError, match="no bundle, so it is not replaced"):
        sample.write(tmp_path / "home", replace=True)
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    with pytest.raises(UsageError, match="no folder"):
        sample.write(tmp_path / "link", replace=True)
    assert (tmp_path / "home" / "thesis.txt").read_text() == "years"


def test_folders_made_for_a_target_go_with_it(tmp_path: Path) -> None:
    for number in (1, 2):
        with pytest.raises(KeyboardInterrupt), BundleWriter(tmp_path / "new" / "er" / "tiny"):
            raise KeyboardInterrupt
        assert names(tmp_path) == ["new"] * (number - 1)
        (tmp_path / "new").mkdir(exist_ok=True)  # the second time it is not ours
    sample.write(tmp_path / "new" / "er" / "tiny")
    assert names(tmp_path / "new" / "er") == ["tiny"]


def test_a_place_where_nothing_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match=r"file/a/tiny: no folder can be made there .* choose another place"):
        sample.write(tmp_path / "file" / "a" / "tiny")
    with pytest.raises(UsageError, match="no folder can be made there"):
        sample.write(Path("/proc/tiny"))


def test_a_target_that_appears_meanwhile_wins(tmp_path: Path) -> None:
    target = tmp_path / "tiny"
    with pytest.raises(UsageError, match="exists"), BundleWriter(target) as writer:
        sample.fill(writer, "late")
        sample.write(target, note="early")
        writer.publish(sample.draft())
    assert note(target) == "early" and names(tmp_path) == ["tiny"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_bundle_is_replaced_with_and_without_the_kernels_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr("tandem.artifacts.staging.ctypes.CDLL", lambda *_, **__: object())
    for turn in ("first", "second", "third"):
        sample.write(tmp_path / "tiny", note=turn, replace=True)
        assert note(tmp_path / "tiny") == turn and names(tmp_path) == ["tiny"]


@pytest.mark.parametrize("replace", [True, False])
def test_racing_compiles_end_cleanly_and_one_wins(tmp_path: Path, replace: bool) -> None:
    def compile_one(number: int) -> str | None:
        try:
            sample.write(tmp_path / "tiny", note=str(number), replace=replace)
        except UsageError as error:
            assert "exists" in str(error)
            return None
        return str(number)

    with ThreadPoolExecutor(6) as pool:
        done = [name for name in pool.map(compile_one, range(6)) if name]
    assert len(done) == (6 if replace else 1)
    assert note(tmp_path / "tiny") in done
    assert names(tmp_path) == ["tiny"]


CRASH = """
import os, signal, sys
from pathlib import Path
from tests.artifacts import sample
from tandem.artifacts.writer import BundleWriter
with BundleWriter(Path(sys.argv[1])) as writer:
    sample.fill(writer)
    print("filled", flush=True)
    {ending}
"""


def _compile_elsewhere(target: Path, ending: str) -> subprocess.Popen[str]:
    code = [sys.executable, "-c", CRASH.format(ending=ending), str(target)]
    process = subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None and process.stdout.readline() == "filled\n"
    return process


def test_a_crash_leaves_a_partial_folder_that_the_next_run_sweeps(tmp_path: Path) -> None:
    with _compile_elsewhere(tmp_path / "tiny", "os.kill(os.getpid(), signal.SIGKILL)") as process:
        assert process.wait() == -signal.SIGKILL
    (left,) = names(tmp_path)
    assert left.startswith(f".tiny.partial-{process.pid}-")
    sample.write(tmp_path / "other")
    assert left in names(tmp_path), "another target's folder is none of our business"
    sample.write(tmp_path / "tiny")
    assert names(tmp_path) == ["other", "tiny"]


def test_a_living_compile_keeps_its_folder(tmp_path: Path) -> None:
    with _compile_elsewhere(tmp_path / "tiny", "sys.stdin.read()") as process:
        sample.write(tmp_path / "tiny")
        assert len(names(tmp_path)) == 2
        process.kill()


def test_a_folder_in_use_is_kept_although_its_process_id_is_unknown_here(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    folder = tmp_path / f".tiny.partial-{gone.pid}-00"
    folder.mkdir()
    held = staging.lock(folder)
    staging.sweep(tmp_path / "tiny")
    assert folder.exists()
    os.close(held)
    staging.sweep(tmp_path / "tiny")
    assert not folder.exists()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    st.dictionaries(st.text(max_size=4), st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text())
)
def test_any_spec_survives_or_is_refused(tmp_path: Path, spec: dict[str, object]) -> None:
    resolved = sample.resolved(msgspec.structs.asdict(sample.draft()), spec=spec)
    try:
        manifest = sample.write(tmp_path / "tiny", replace=True, resolved=resolved)
    except TandemError:
        return
    assert open_bundle(tmp_path / "tiny").manifest == manifest
