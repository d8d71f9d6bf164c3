"""A registry on loopback, a signed bundle with one large file, and no pauses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.artifacts.shipping import transfer
from tandem.artifacts.signing import sign
from tests.artifacts import sample
from tests.artifacts.keys import write_pair
from tests.artifacts.shipping.desk import BIG, place, run
from tests.artifacts.shipping.fake_registry import Registry, RegistryHandler
from tests.artifacts.shipping.loopback import Server, serving


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAUSES", (0.0, 0.0))


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Docker configuration of the tests' own, without logins."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text("{}")
    return tmp_path / "docker" / "config.json"


@pytest.fixture
def server(docker: Path) -> Iterator[Server]:
    with serving(RegistryHandler, Registry()) as server:
        yield server


@pytest.fixture(scope="package")
def large(tmp_path_factory: pytest.TempPathFactory, state_home: Path) -> Path:
    """A sound, signed bundle with one large file; tests must not change it."""
    folder = tmp_path_factory.mktemp("large")
    sample.write(folder / "tiny", note="0123456789abcdef" * (BIG // 16))
    sign(folder / "tiny", write_pair(folder, "mine")[0])
    return folder / "tiny"


@pytest.fixture
def pushed(server: Server, large: Path, capsys: pytest.CaptureFixture[str]) -> Server:
    code, _, err = run(capsys, "push", large, place(server))
    assert (code, err) == (0, "")
    server.seen.clear()
    return server
