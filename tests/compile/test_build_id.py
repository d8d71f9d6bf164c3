"""The build id moves with everything that decides a bundle's bytes; what does not move it is listed here by reason."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tandem.artifacts.digest import build_id
from tandem.artifacts.resolved import Resolved
from tandem.compile import plan as door
from tandem.compile import sources, tools
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.cli import command
from tandem.compile.cpu import target as cpu
from tandem.compile.plan import Plan, make_plan
from tandem.kernels import build as kernels
from tests.tiny import make_checkpoint

INERT_PLAN_FIELDS = {
    "name": "a label of the bundle; content_id covers it",
    "target": "told by `device` and `flags`",
    "weight_bytes": "follows from spec and profile",
    "resolved": "what is hashed",
}
INERT_OPTIONS = {
    "accept_quality": "whether a bundle is sealed, not what it holds",
    "output": "where the bundle goes",
    "name": "a label of the bundle; content_id covers it",
    "revision": "which checkpoint is read: its digest is resolved",
    "offline": "where it is read from",
    "replace": "what happens to an older bundle",
    "dry_run": "nothing is built",
    "as_json": "how the result is printed",
    "quiet": "how progress is shown",
    "version": "nothing is built",
}
RESOLVED_OPTIONS = {"model": "checkpoint", "max_seq_len": "geometry", "profile": "", "device": "", "drafter": ""}
"""And where an option of another name stands in the configuration."""
CLASSES = {
    "comment": r"//[^\n]*|/\*.*?\*/",
    "include": r"^#[ \t]*include[^\n]*",
    "directive": r"^#[^\n]*",
    "string": r'"(?:\\.|[^"\\\n])*"',
    "number": r"\b[0-9][0-9a-fA-FxX.'uUlLf]*\b",
    "code": r"[A-Za-z_]\w*",
    "space": r"\s+",
}
"""Classes of bytes in a C++ source, tried in this order at each place."""
LEXER = re.compile("|".join(f"(?P<{name}>{form})" for name, form in CLASSES.items()), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    return make_checkpoint(tmp_path_factory.mktemp("ids") / "a", "llama", rope=rope)


def plan(folder: Path) -> Plan:
    checkpoint = open_checkpoint(str(folder))
    return make_plan(checkpoint, checkpoint.digest(), name="tiny", profile="bf16", device="auto", context_length=256)


@pytest.fixture(scope="module")
def made(folder: Path) -> Plan:
    return plan(folder)


def other(value: Any) -> Any:
    """Another value of the same type."""
    if value is None:
        return 1.5
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if not re.fullmatch("[0-9a-f]{64}", value) else value[::-1] if value != value[::-1] else "0" * 64


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not items:
        yield path
    for key, item in items:
        yield from leaves(item, (*path, key))


def changed(value: Any, path: tuple[Any, ...], to: Callable[[Any], Any]) -> Any:
    """A copy of `value` with another leaf at `path`."""
    if not path:
        return to(value)
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], to)
    return copy


def test_every_leaf_of_the_configuration_moves_it(made: Plan) -> None:
    fields = json.loads(msgspec.json.encode(made.resolved))
    paths = list(leaves(fields))
    assert ("spec", "rope", "factor") in paths and ("geometry", "kv_planes", 1, 0) in paths and len(paths) > 150
    ids = {build_id(changed(fields, path, lambda v: other(v) if v != {} else {"CPATH": "x"})) for path in paths}
    assert len(ids) == len(paths) and made.resolved.build_id() not in ids


def test_no_leaf_can_be_dropped_added_or_spelt_otherwise_unseen(made: Plan) -> None:
    fields = json.loads(msgspec.json.encode(made.resolved))
    assert msgspec.convert(fields, Resolved) == made.resolved
    for name in fields:
        with pytest.raises(msgspec.ValidationError, match=f"missing required field `{name}`"):
            msgspec.convert({key: value for key, value in fields.items() if key != name}, Resolved)
    for path in ((), ("geometry",)):
        with pytest.raises(msgspec.ValidationError, match="unknown field `fast_math`"):
            msgspec.convert(changed(fields, path, lambda v: v | {"fast_math": True}), Resolved)
    for path in (("spec",), ("spec", "rope"), ("profile",), ("tools",), ("sources",)):
        assert build_id(changed(fields, path, lambda v: v | {"fast_math": "1"})) != made.resolved.build_id()
    assert build_id(changed(fields, ("spec", "hidden_size"), float)) != made.resolved.build_id()


def test_every_field_of_the_plan_is_resolved_or_inert(made: Plan) -> None:
    names = {field.name for field in dataclasses.fields(Plan)}
    assert names - INERT_PLAN_FIELDS.keys() <= set(Resolved.__struct_fields__)
    assert INERT_PLAN_FIELDS.keys() <= names


def test_every_option_of_the_command_is_resolved_or_inert() -> None:
    names = {param.name for param in command.params}
    assert names - INERT_OPTIONS.keys() - RESOLVED_OPTIONS.keys() == set()


def _fields(value: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(value)]


def test_every_field_of_spec_profile_and_geometry_moves_it(
    folder: Path, made: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope, first = made.spec.rope, made.resolved.build_id()
    specs = [
        *(
            dataclasses.replace(made.spec, **{n: other(getattr(made.spec, n))})
            for n in _fields(made.spec)
            if n != "rope"
        ),
        *(
            dataclasses.replace(made.spec, rope=dataclasses.replace(rope, **{n: other(getattr(rope, n))}))
            for n in _fields(rope)
        ),
    ]
    profiles = [
        dataclasses.replace(made.profile, **{n: torch.float16 if n == "cache" else other(getattr(made.profile, n))})
        for n in _fields(made.profile)
    ]
    geometries = [
        dataclasses.replace(made.geometry, **{n: ((1, 1),) if n == "kv_planes" else other(getattr(made.geometry, n))})
        for n in _fields(made.geometry)
        if n != "drafter"
    ]
    ids = []
    # Impossible sizes are not planned: only what the plan records of them is asked for here.
    monkeypatch.setattr(door, "weight_bytes", lambda *_, **__: 0)
    monkeypatch.setattr(door, "require_tensors", lambda *_: None)
    _same_tools(monkeypatch, made)
    places = (door, "resolve", specs), (door, "find_profile", profiles), (cpu, "geometry", geometries)
    for module, name, values in places:
        for value in values:
            with monkeypatch.context() as patch:
                if name != "geometry":
                    patch.setattr(cpu, "geometry", lambda *_, **__: made.geometry)
                patch.setattr(module, name, lambda *_, value=value, **__: value)
                ids.append(plan(folder).resolved.build_id())
    assert len({*ids, first}) == 1 + len(ids) > 35


def _same_tools(monkeypatch: pytest.MonkeyPatch, made: Plan) -> None:
    """Asking compilers for their versions takes longer than all the rest of a plan."""
    monkeypatch.setattr(door, "tool_versions", lambda: made.resolved.tools)
    monkeypatch.setattr(cpu, "compiler_versions", dict)


def test_every_flag_moves_it(folder: Path, made: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    _same_tools(monkeypatch, made)
    flags, ids = kernels.FLAGS, []
    for i in range(len(flags)):
        for spoilt in ((*flags[:i], *flags[i + 1 :]), (*flags[:i], flags[i] + "0", *flags[i + 1 :])):
            monkeypatch.setattr(kernels, "FLAGS", spoilt)
            ids.append(plan(folder).resolved.build_id())
    monkeypatch.setattr(kernels, "FLAGS", flags)
    monkeypatch.setattr(kernels, "isa_flags", lambda isa: ["-march=native"])
    ids.append(plan(folder).resolved.build_id())
    assert len({*ids, made.resolved.build_id()}) == 1 + len(ids)


@pytest.mark.parametrize("name", tools.PACKAGES)
def test_every_package_moves_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, version = tools.tool_versions(), tools.version
    monkeypatch.setattr(tools, "version", lambda asked: "99.0" if asked == name else version(asked))
    assert {key for key, value in tools.tool_versions().items() if value != before[key]} == {name}


def test_a_wrapper_around_the_same_compiler_moves_it(
    made: Plan, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "g++"
    wrapper.write_text(f'#!/bin/sh\nexec {kernels.compiler()} "$@" -ffast-math\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    resolved = plan(folder).resolved
    assert resolved.tools["compiler"] == made.resolved.tools["compiler"]
    assert resolved.build_id() != made.resolved.build_id() and str(tmp_path) not in repr(resolved)


def test_another_assembler_or_linker_moves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "g++" not in tools.compiler_versions()["compiler"]:
        pytest.skip("only GCC looks for its parts in COMPILER_PATH")
    for part in ("as", "ld"):
        (tmp_path / part).write_text(f"#!/bin/sh\necho {part} 99\n")
        (tmp_path / part).chmod(0o755)
    monkeypatch.setenv("COMPILER_PATH", str(tmp_path))
    found = tools.compiler_versions()
    assert (found["assembler"], found["linker"]) == ("as 99", "ld 99")


@pytest.mark.parametrize("name", tools.VARIABLES)
def test_every_variable_that_a_compiler_obeys_moves_it(
    folder: Path, made: Plan, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _same_tools(monkeypatch, made)
    monkeypatch.setenv(name, "17")
    resolved = plan(folder).resolved
    assert resolved.environment == {name: "17"} and resolved.build_id() != made.resolved.build_id()


def _classes(text: str) -> dict[str, int]:
    """For each class of bytes in a source the middle of one place where it stands."""
    return {str(m.lastgroup): (m.start() + m.end()) // 2 for m in LEXER.finditer(text)}


def test_a_byte_of_every_class_of_every_kernel_source_moves_it(
    made: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "tandem"
    shutil.copytree(sources.ROOT / "kernels" / "cpu", copy / "kernels" / "cpu")
    monkeypatch.setattr(sources, "ROOT", copy)

    def found() -> str:
        return msgspec.structs.replace(made.resolved, sources=sources.source_digests()).build_id()

    ids, seen = [found()], set()
    assert sources.source_digests().items() <= made.resolved.sources.items()
    for path in kernels.sources():
        source = copy / "kernels" / "cpu" / path.name
        text = source.read_text()
        for name, place in _classes(text).items():
            seen.add(name)
            source.write_text(text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :])
            ids.append(found())
        source.write_text(text)
        source.rename(source.with_stem("renamed"))
        ids.append(found())
        source.with_stem("renamed").rename(source)
    assert len(set(ids)) == len(ids) > 100 and seen == CLASSES.keys()


def test_a_byte_of_every_compiler_source_moves_it(
    made: Plan, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "tandem"
    shutil.copytree(sources.ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sources, "ROOT", copy)
    _same_tools(monkeypatch, made)
    assert plan(folder).resolved.build_id() == made.resolved.build_id()
    wanted = {"compile/lowering.py", "compile/models/llama.py", "artifacts/io.py", "artifacts/program.py"}
    for name in wanted | {"kernels/linear.py", "runtime/executor/cpu.py", "tandem/keys.py"}:
        path = copy / name.removeprefix("tandem/")
        data = path.read_bytes()
        path.write_bytes(data[:-1] + b" ")
        assert plan(folder).resolved.build_id() != made.resolved.build_id(), name
        path.write_bytes(data)


def test_what_differs_between_two_folders_does_not_move_it(
    made: Plan, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", str((os.cpu_count() or 1) + 1))
    assert plan(Path("elsewhere")).resolved == made.resolved
