"""Hub ids against a small hub on loopback: pinning, sharding, offline, and every way it can go wrong."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file

from tandem.compile.checkpoints.open import open_checkpoint, open_drafter
from tandem.errors import CheckpointError
from tests.compile.checkpoints.hub_server import HubServer
from tests.compile.models.dflash2_oracle import make_drafter
from tests.tiny import make_checkpoint

REPO = "tiny-org/tiny.llama-1"
SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield server


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("whole"), "llama")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("sharded"), "llama", shards=3)


def _message(source: str, **options: object) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(source, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_fetches_what_is_needed_and_nothing_else(hub: HubServer, whole: Path, tmp_path: Path) -> None:
    for unwanted in ("README.md", "consolidated.safetensors", "pytorch_model.bin"):
        (whole / unwanted).write_bytes(b"not wanted")
    commit = hub.push(REPO, whole)
    for unwanted in ("README.md", "consolidated.safetensors", "pytorch_model.bin"):
        (whole / unwanted).unlink()
    checkpoint = open_checkpoint(REPO, cache_dir=tmp_path)
    assert checkpoint.revision == commit
    assert checkpoint.origin == f"{REPO}@{commit}"
    assert sorted(hub.downloads()) == sorted(path.name for path in whole.iterdir())
    for name, tensor in load_file(whole / "model.safetensors").items():
        assert torch.equal(checkpoint.read(name), tensor)


def test_a_drafter_has_no_tokenizer_and_none_is_fetched(hub: HubServer, tmp_path: Path) -> None:
    make_drafter(tmp_path / "made")
    (tmp_path / "made" / "README.md").write_text("not wanted")
    commit = hub.push(REPO, tmp_path / "made")
    drafter, local = open_drafter(REPO, cache_dir=tmp_path), open_drafter(str(tmp_path / "made"))
    assert drafter.origin == f"{REPO}@{commit}" and local.origin == str(tmp_path / "made")
    assert sorted(hub.downloads()) == ["config.json", "model.safetensors"]
    assert drafter.digest() == local.digest() and drafter.config == local.config
    hub.requests.clear()
    assert open_drafter(REPO, offline=True, cache_dir=tmp_path).digest() == local.digest() and hub.requests == []
    with pytest.raises(CheckpointError, match="no-such/drafter: no such model on"):
        open_drafter("no-such/drafter", cache_dir=tmp_path)


def test_shards_come_by_the_index(hub: HubServer, whole: Path, sharded: Path, tmp_path: Path) -> None:
    hub.push(REPO, sharded)
    checkpoint = open_checkpoint(REPO, cache_dir=tmp_path)
    assert sum(name.endswith(".safetensors") for name in hub.downloads()) == 3
    assert checkpoint.digest() == open_checkpoint(str(whole)).digest()


def test_a_pinned_revision_stays_when_main_moves(hub: HubServer, whole: Path, tmp_path: Path) -> None:
    first = hub.push(REPO, whole)
    newer = make_checkpoint(tmp_path / "newer", "llama", seed=1)
    second = hub.push(REPO, newer)
    hub.refs[REPO]["v1"] = first
    for revision in (first, "v1"):
        pinned = open_checkpoint(REPO, revision=revision, cache_dir=tmp_path / "cache")
        assert pinned.revision == first
        assert pinned.digest() == open_checkpoint(str(whole)).digest()
    moved = open_checkpoint(REPO, cache_dir=tmp_path / "cache")
    assert moved.revision == second
    assert moved.digest() == open_checkpoint(str(newer)).digest()


def test_a_second_open_offline_asks_the_hub_nothing(hub: HubServer, sharded: Path, tmp_path: Path) -> None:
    hub.push(REPO, sharded)
    online = open_checkpoint(REPO, cache_dir=tmp_path)
    hub.requests.clear()
    offline = open_checkpoint(REPO, offline=True, cache_dir=tmp_path)
    assert hub.requests == []
    assert offline.revision == online.revision
    assert offline.digest() == online.digest()


def test_offline_without_a_copy_says_how_to_fetch(hub: HubServer, tmp_path: Path) -> None:
    message = _message(REPO, offline=True, cache_dir=tmp_path)
    assert REPO in message and "run once without --offline" in message
    assert hub.requests == []


def test_offline_with_part_of_a_copy_says_how_to_fetch(hub: HubServer, sharded: Path, tmp_path: Path) -> None:
    hub.push(REPO, sharded)
    hub.cut[SHARD] = 100
    _message(REPO, cache_dir=tmp_path)
    assert "run once without --offline" in _message(REPO, offline=True, cache_dir=tmp_path)


def test_the_network_gone_but_fetched_before(hub: HubServer, whole: Path, tmp_path: Path) -> None:
    commit = hub.push(REPO, whole)
    open_checkpoint(REPO, cache_dir=tmp_path)
    hub.close()
    assert open_checkpoint(REPO, cache_dir=tmp_path).revision == commit


def test_the_network_gone(hub: HubServer, tmp_path: Path) -> None:
    hub.close()
    message = _message(REPO, cache_dir=tmp_path)
    assert hub.url in message and "check the network" in message


def test_a_truncated_download_fails_and_a_second_run_mends_it(hub: HubServer, sharded: Path, tmp_path: Path) -> None:
    hub.push(REPO, sharded)
    hub.cut[SHARD] = 1000
    message = _message(REPO, cache_dir=tmp_path)
    assert "download failed" in message and "run the command again" in message
    hub.cut.clear()
    assert open_checkpoint(REPO, cache_dir=tmp_path).digest() == open_checkpoint(str(sharded)).digest()


def test_a_broken_connection_is_resumed(
    hub: HubServer, sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    hub.push(REPO, sharded)
    hub.broken.add(SHARD)
    checkpoint = open_checkpoint(REPO, cache_dir=tmp_path)
    assert hub.downloads().count(SHARD) == 2
    assert checkpoint.digest() == open_checkpoint(str(sharded)).digest()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_cache_that_cannot_be_written(
    hub: HubServer, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise OSError(number, os.strerror(number), str(tmp_path))

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    message = _message(REPO, cache_dir=tmp_path)
    assert os.strerror(number) in message and message.endswith("set HF_HOME to a folder with room to write in")


def test_a_shard_missing_in_the_repository(hub: HubServer, sharded: Path, tmp_path: Path) -> None:
    commit = hub.push(REPO, sharded, without=(SHARD,))
    message = _message(REPO, cache_dir=tmp_path)
    assert f"{REPO}@{commit}" in message and SHARD in message and "wants 3 shards, found 2" in message


def test_a_repository_of_pickles(hub: HubServer, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "pickled").mkdir()
    for path in whole.iterdir():
        renamed = "pytorch_model.bin" if path.suffix == ".safetensors" else path.name
        (tmp_path / "pickled" / renamed).write_bytes(path.read_bytes())
    hub.push(REPO, tmp_path / "pickled")
    message = _message(REPO, cache_dir=tmp_path / "cache")
    assert "pytorch_model.bin" in message and "convert to safetensors" in message
    assert "pytorch_model.bin" not in hub.downloads()


def test_a_repository_without_config(hub: HubServer, whole: Path, tmp_path: Path) -> None:
    hub.push(REPO, whole, without=("config.json",))
    assert "config.json is missing" in _message(REPO, cache_dir=tmp_path)


def test_unknown_repository_revision_and_gate(hub: HubServer, whole: Path, tmp_path: Path) -> None:
    assert "no such model" in _message("tiny-org/nothing", cache_dir=tmp_path)
    hub.push(REPO, whole)
    assert "no revision v9" in _message(REPO, revision="v9", cache_dir=tmp_path)
    assert f"no revision {'0' * 40}" in _message(REPO, revision="0" * 40, cache_dir=tmp_path)
    hub.gated.add(REPO)
    message = _message(REPO, cache_dir=tmp_path)
    assert "gated" in message and "HF_TOKEN" in message


def test_a_name_the_hub_would_refuse(tmp_path: Path) -> None:
    assert re.search(r"not a hub id .*wanted org/name", _message("org/a--b..c", cache_dir=tmp_path))


def test_hf_endpoint_is_honoured(hub: HubServer, whole: Path, tmp_path: Path) -> None:
    commit = hub.push(REPO, whole)
    script = (
        "import sys; from tandem.compile.checkpoints.open import open_checkpoint; "
        "print(open_checkpoint(sys.argv[1], cache_dir=sys.argv[2]).revision)"
    )
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script, REPO, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == commit
