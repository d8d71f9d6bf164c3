"""Tiny operators on one thread, since more would only wait for each other, and a machine key of the tests' own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.bundles import state_home


@pytest.fixture(scope="package", autouse=True)
def own_key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state_home()))
        yield


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
