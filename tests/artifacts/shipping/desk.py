"""What tests of shipping say and look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.artifacts import layout
from tandem.artifacts.cli import cli
from tandem.artifacts.digest import sha256_file
from tandem.command import run_command
from tests.artifacts.shipping.loopback import Server

BIG = 3 << 20
"""Bytes of the report, which stands for large weights here."""


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run_command(cli, "tandem-bundle", [str(a) for a in arguments])
    return code, *capsys.readouterr()


def place(server: Server, tag: str = "v1") -> str:
    """An address in the registry."""
    return f"oci://{server.host}/a/b:{tag}"


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def big(large: Path) -> str:
    """The digest of the large file."""
    return "sha256:" + sha256_file(large / layout.REPORT)


def leftovers(target: Path) -> list[str]:
    """Names of the parts beside the place of a bundle."""
    return [path.name for path in target.parent.iterdir() if path.name.startswith(".")]
