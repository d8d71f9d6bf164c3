"""Tiny bundles for checks, opened under the key that sealed them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.artifacts.reader import Bundle, open_bundle
from tests.bundles import compiled, state_home

TinyBundle = Callable[..., Path]


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(state_home()))


@pytest.fixture(scope="session")
def tiny_bundle() -> TinyBundle:
    """Path of the bundle of a tiny checkpoint by (family, profile), compiled once per session."""
    return compiled


@pytest.fixture(scope="session")
def fp32(tiny_bundle: TinyBundle) -> Path:
    return tiny_bundle("llama", "fp32")


@pytest.fixture(scope="session")
def bf16(tiny_bundle: TinyBundle) -> Path:
    return tiny_bundle("qwen3", "bf16")


@pytest.fixture
def opened(fp32: Path) -> Bundle:
    return open_bundle(fp32)
