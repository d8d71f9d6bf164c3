"""Native code of tiny bundles counts as built here."""

from __future__ import annotations

import pytest

from tests.bundles import state_home


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(state_home()))
