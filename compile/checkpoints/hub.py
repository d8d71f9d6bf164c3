"""Checkpoints named by a hub id, fetched through huggingface_hub at one commit.

Knows nothing of what the files hold, except which shards the index lists. HF_ENDPOINT, HF_TOKEN, HF_HOME and the
other variables are the library's own.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from tandem.compile.checkpoints.hf import CONFIG, TEXT_FILES, HfCheckpoint
from tandem.compile.checkpoints.tensor_folder import INDEX, WHOLE, no_weights, shard_names
from tandem.errors import CheckpointError


def open_hub(repo: str, *, revision: str | None, offline: bool, cache_dir: Path | str | None) -> HfCheckpoint:
    """Fetch what a checkpoint needs and open it; `.revision` is the commit that `revision` (main if None) led to."""
    folder, origin = fetch_model(repo, TEXT_FILES, revision=revision, offline=offline, cache_dir=cache_dir)
    return HfCheckpoint(folder, origin=origin, revision=folder.name)


def fetch_model(
    repo: str, more: Sequence[str], *, revision: str | None, offline: bool, cache_dir: Path | str | None
) -> tuple[Path, str]:
    """The folder of config, weights and files `more` in the cache, named by its commit; what messages call it.

    Shards go by the index, at the commit the index came from, so that a push in between cannot mix two revisions.
    """

    def fetch(patterns: list[str], commit: str | None) -> Path:
        return _fetch(repo, patterns, revision=commit, offline=offline, cache_dir=cache_dir)

    folder = fetch([CONFIG, INDEX, *more], revision)
    commit = folder.name  # the cache names a snapshot's folder by its commit
    origin = f"{repo}@{commit}"
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{origin}: {CONFIG} is missing in the repository: give a model in Transformers' format")
    sharded = (folder / INDEX).is_file()
    fetch(shard_names(folder) if sharded else [WHOLE], commit)
    if not sharded and not (folder / WHOLE).is_file():
        raise no_weights(origin, [] if offline else _listing(repo, commit))
    return folder, origin


def _fetch(
    repo: str, patterns: list[str], *, revision: str | None, offline: bool, cache_dir: Path | str | None
) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                repo, revision=revision, allow_patterns=patterns, local_files_only=offline, cache_dir=cache_dir
            )
        )
    except Exception as error:
        raise _explained(error, repo, revision or "main", offline) from error


def _listing(repo: str, commit: str) -> list[str]:
    from huggingface_hub import HfApi

    try:
        return HfApi().list_repo_files(repo, revision=commit)
    except Exception as error:
        raise _explained(error, repo, commit, False) from error


def _explained(error: Exception, repo: str, revision: str, offline: bool) -> CheckpointError:
    """One line for each way the hub can fail; anything that is not the hub's or the network's fault is re-raised."""
    from huggingface_hub import constants, errors

    where = f"{repo} at {revision}"
    match error:
        case errors.GatedRepoError():
            text = f"{repo}: access is gated: accept its terms on {constants.ENDPOINT}/{repo} and set HF_TOKEN"
        case errors.RepositoryNotFoundError():
            text = f"{repo}: no such model on {constants.ENDPOINT}: check the id, or set HF_TOKEN if it is private"
        case errors.RevisionNotFoundError():
            text = f"{repo}: has no revision {revision}: check --revision (a branch, a tag or a commit)"
        case errors.LocalEntryNotFoundError() if offline or constants.HF_HUB_OFFLINE:
            text = f"{where}: not (wholly) in the local cache: " + (
                "run once without --offline (and with HF_HUB_OFFLINE unset) to fetch it"
            )
        case errors.LocalEntryNotFoundError():
            text = f"{where}: {constants.ENDPOINT} cannot be reached ({_first_line(error)}): check the network"
        case errors.HFValidationError():
            text = f"{repo}: not a hub id ({_first_line(error)}): wanted org/name"
        case errors.HfHubHTTPError():
            text = f"{where}: {constants.ENDPOINT} answered with an error ({_first_line(error)}): try again later"
        case errors.HTTPError():  # type: ignore[attr-defined]  # of httpx or httpx2, whichever the library uses
            text = f"{where}: the connection to {constants.ENDPOINT} failed ({_first_line(error)}): check the network"
        case OSError(errno=errno.ENOSPC | errno.EROFS | errno.EACCES):
            text = f"{where}: download failed ({_first_line(error)}): set HF_HOME to a folder with room to write in"
        case OSError():
            text = f"{where}: download failed ({_first_line(error)}): run the command again, it resumes"
        case _:
            raise error
    return CheckpointError(text)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
