"""A machine key of the tests' own, and one sealed sample bundle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.artifacts import sample


@pytest.fixture(scope="package", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's own key is never touched."""
    home = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home))
        yield home


@pytest.fixture(scope="package")
def sealed(state_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound bundle; tests must not change it."""
    target = tmp_path_factory.mktemp("sealed") / "tiny"
    sample.write(target)
    return target


@pytest.fixture
def bundle(sealed: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return sample.copy(sealed, tmp_path / "tiny")
