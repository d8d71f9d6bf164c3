"""Bundles as model repositories of a Hugging Face hub: one commit per push, read back at one commit.

Knows the repository's shape; `huggingface_hub` speaks to the hub. Its own downloads begin anew after a cut, so files
are read here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tandem.artifacts import layout
from tandem.artifacts.header import decode
from tandem.artifacts.manifest import FileRecord, Manifest
from tandem.artifacts.shipping.address import HubAddress
from tandem.artifacts.shipping.outbox import Outbox
from tandem.errors import BundleCorrupt, BundleError, TransferError, UsageError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_TIMEOUT_S = 60.0
_CHUNK = 1 << 20
_PASSING = (408, 429, 500, 502, 503, 504)


class HubSource:
    """The bundle at `address`, at the commit its revision stands for when the manifest is read."""

    def __init__(self, address: HubAddress) -> None:
        self._address = address
        self._api = _api(address)
        self._commit = address.revision or "main"

    def manifest(self) -> bytes:
        with _told(self._address):
            info = self._api.repo_info(self._address.repository, revision=self._address.revision, timeout=_TIMEOUT_S)
        self._commit = info.sha or ""
        data = self._read(layout.MANIFEST, layout.MAX_MANIFEST_BYTES)
        if data is None:
            raise BundleError(f"{self._address}: no bundle, it holds no {layout.MANIFEST}")
        return data

    def check(self, manifest: Manifest) -> None:
        with _told(self._address):
            tree = self._api.list_repo_tree(self._address.repository, recursive=True, revision=self._commit)
            there = {entry.path: entry for entry in tree}
        for file in manifest.files:
            found = there.get(file.path)
            size, lfs = getattr(found, "size", "nothing"), getattr(found, "lfs", None)
            if size != file.size or (lfs and lfs.sha256 != file.sha256):
                raise BundleCorrupt(
                    f"{file.path}: {file.size} bytes of sha256 {file.sha256} wanted, "
                    f"{size}{f' of {lfs.sha256}' if lfs else ''} at {self._address}"
                )

    def signature(self) -> bytes | None:
        return self._read(layout.SIGNATURE, layout.MAX_JSON_BYTES)

    @contextmanager
    def open(self, file: FileRecord, offset: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        with self._get(file.path, offset) as response:
            if response.status_code == 416:
                yield offset, iter(())  # there is nothing behind `offset`
            else:
                yield offset if response.status_code == 206 else 0, response.iter_bytes(_CHUNK)

    def _read(self, name: str, limit: int) -> bytes | None:
        data = b""
        with self._get(name, 0, absent=True) as response:
            if response.status_code == 404:
                return None
            for chunk in response.iter_bytes(_CHUNK):
                data += chunk
                if len(data) > limit:
                    raise BundleCorrupt(f"{name}: over {limit} bytes at {self._address}")
        return data

    @contextmanager
    def _get(self, name: str, offset: int, *, absent: bool = False) -> Iterator[Any]:
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        url = hf_hub_url(self._address.repository, name, revision=self._commit, endpoint=self._api.endpoint)
        headers = build_hf_headers(library_name="tandem") | {"Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        with (
            _told(self._address),
            get_session().stream("GET", url, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True) as response,
        ):
            if response.status_code != 416 and not (absent and response.status_code == 404):
                hf_raise_for_status(response)
            yield response


def push(outbox: Outbox, address: HubAddress, *, public: bool = False, bars: bool = False) -> HubAddress:
    """Makes the bundle the content of `address` by one commit; returns its address by commit.

    A repository that is not there is made, a private one unless `public`. What the hub has already is not sent
    again. Files of an earlier bundle go; others, such as a README, stay. `bars`: the library shows its progress.
    """
    api = _api(address)
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    (enable_progress_bars if bars else disable_progress_bars)()
    files = (*outbox.files, outbox.manifest_file)
    with _told(address):
        api.create_repo(address.repository, private=not public, exist_ok=True)
        if address.revision:
            api.create_branch(address.repository, branch=address.revision, exist_ok=True)
        stale = _earlier(api, address) - {file.path for file in files}
    operations = [
        *(CommitOperationAdd(file.path, outbox.path / file.path) for file in files),
        *(CommitOperationDelete(path, is_folder=False) for path in sorted(stale)),
    ]
    there = HubAddress(address.repository, _commit(api, address, operations, outbox.manifest))
    HubSource(there).check(outbox.manifest)  # a .gitignore there makes the hub leave files out
    return there


def _commit(api: HfApi, address: HubAddress, operations: list[Any], manifest: Manifest) -> str:
    message = f"{manifest.name} {manifest.profile} for {manifest.device}"
    try:
        with _told(address):
            try:
                made = api.create_commit(
                    address.repository, operations, commit_message=message, revision=address.revision
                )
            except RuntimeError as error:  # an upload went wrong, for the reason inside
                raise error.__cause__ or error from error
    except (RuntimeError, ValueError) as error:  # an upload of the library raises these bare
        raise TransferError(f"{address}: {' '.join(str(error).split())[:300]}; run the command again") from error
    return made.oid


def _earlier(api: HfApi, address: HubAddress) -> set[str]:
    """Files at `address` that belong to the bundle there, if there is a sound one."""
    source = HubSource(address)
    try:
        listed = {file.path for file in decode(source.manifest()).files}
    except BundleError:
        return set()
    there = set(api.list_repo_files(address.repository, revision=address.revision))
    return there & (listed | {layout.SIGNATURE})


def _api(address: HubAddress) -> HfApi:
    try:
        import httpx2  # noqa: F401
        from huggingface_hub import HfApi
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{address} needs {error.name}, which is not installed: pip install 'tandem-llm[hub]'"
        ) from None
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="tandem")


@contextmanager
def _told(address: HubAddress) -> Iterator[None]:
    """Says in one line what the hub, or the way to it, would not do."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        said = " ".join((error.server_message or str(error).splitlines()[0]).split())[:200]
        remedy = "; hf auth login with rights for this" if status in (401, 403, 404) else ""
        raise TransferError(
            f"{address}: the hub answered {status}: {said}{remedy}", passing=status in _PASSING
        ) from error
    except httpx2.TransportError as error:
        raise TransferError(f"{address}: connection lost ({error}); run the command again", passing=True) from error
    except HFValidationError as error:
        raise UsageError(f"{address}: {' '.join(str(error).split())}") from error
