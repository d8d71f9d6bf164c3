"""The request of the proving process: two devices, each with its own fields, told apart by name."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tandem.artifacts.io import Geometry
from tandem.compile import examine as door
from tandem.keys import Kind
from tandem.runtime.checks.staged import EntryFile, Staged, StagedCpu, StagedCuda

GEOMETRY = Geometry(64, 100, 8, 4, 2, 64, 4096, ((2, 64), (2, 64)))


def arrived(request: dict[str, object]) -> Staged:
    return msgspec.json.decode(json.dumps(request), type=Staged)


def test_a_request_of_the_compiler_is_read_as_it_was_meant() -> None:
    cpu = door.Staged(GEOMETRY, Path("w"), Path("l"), {Kind.EXTEND: Path("e")}, threads=2)
    assert arrived(cpu.request()) == StagedCpu(GEOMETRY, "w", "l", {"extend": "e"}, 2)
    programs = (door.StagedProgram(Kind.EXTEND, 1024, 4, Path("p")), door.StagedProgram(Kind.COMMIT, 0, 32, Path("c")))
    cuda = door.StagedCuda(GEOMETRY, Path("w"), Path("k"), Path("c"), programs, device_index=3)
    entries = [EntryFile(Kind.EXTEND, 1024, 4, "p"), EntryFile(Kind.COMMIT, 0, 32, "c")]
    assert arrived(cuda.request()) == StagedCuda(GEOMETRY, "w", "k", "c", entries, 3)


@pytest.mark.parametrize("change", [{"device": "tpu"}, {"device": None}, {"cubins": "k"}, {"programs": {"walk": "p"}}])
def test_what_is_no_request_is_refused(change: dict[str, object]) -> None:
    request = door.StagedCuda(GEOMETRY, Path("w"), Path("k"), Path("c"), ()).request()
    other = door.Staged(GEOMETRY, Path("w"), Path("l"), {}, threads=2).request()
    given = (other if "cubins" in change else request) | change
    with pytest.raises(msgspec.ValidationError):
        arrived(given)
