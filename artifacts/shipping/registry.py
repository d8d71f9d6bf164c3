"""HTTP with one repository of an OCI registry: uploads, downloads from an offset, errors in one line.

Knows nothing of what is kept there. The library oras is used for logins only: its downloads begin anew after a cut,
its uploads hold a whole file in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urljoin, urlsplit

from tandem.artifacts.digest import Progress
from tandem.artifacts.shipping.address import OciAddress
from tandem.artifacts.shipping.login import Login
from tandem.errors import BundleCorrupt, TransferError, UsageError

if TYPE_CHECKING:
    import requests

_TIMEOUT = (10, 60)
"""Seconds to wait for a connection, and for the next byte."""

_CHUNK = 1 << 20
_PASSING = (408, 429, 500, 502, 503, 504)


class Repository:
    """The repository of `address`, spoken to over TLS, or in the clear on loopback or where `plain_http` says so.

    All methods raise TransferError, `passing` where a second try may help. UsageError without the extra.
    """

    def __init__(self, address: OciAddress, *, plain_http: bool = False) -> None:
        try:
            import oras.auth  # noqa: F401
            import requests
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{address} needs {error.name}, which is not installed: pip install 'tandem-llm[oci]'"
            ) from None
        self.address = address
        plain_http = plain_http or address.is_loopback
        self._base = f"{'http' if plain_http else 'https'}://{address.host}/v2/{address.repository}/"
        self._session = requests.Session()
        self._session.headers["Accept-Encoding"] = "identity"  # digests are of bytes as they are stored
        self._login = Login(address, self._session, plain_http=plain_http)

    def exists(self, path: str) -> bool:
        """Whether `path` is there."""
        with self._send("HEAD", path, ok=(200, 404)) as response:
            return response.status_code == 200

    def read(self, path: str, limit: int, accept: str = "*/*") -> bytes:
        """All of `path`. BundleCorrupt over `limit` bytes."""
        with self._send("GET", path, headers={"Accept": accept}) as response, self._lost():
            data = b""
            for chunk in response.iter_content(_CHUNK):
                data += chunk
                if len(data) > limit:
                    raise BundleCorrupt(f"{self.address}: {path} is over {limit} bytes; it belongs to no bundle")
        return data

    @contextmanager
    def stream(self, path: str, offset: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Where the bytes of `path` begin that come, which is `offset` or 0, and the bytes."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        with self._send("GET", path, headers=headers, ok=(200, 206, 416)) as response, self._lost():
            if response.status_code == 416:
                yield offset, iter(())  # there is nothing behind `offset`
            else:
                yield offset if response.status_code == 206 else 0, response.iter_content(_CHUNK)

    def upload(self, digest: str, size: int, path: Path, progress: Progress) -> None:
        """Stores the file at `path`, of `size` bytes, as the blob `digest`; the registry checks it."""
        with self._send("POST", "blobs/uploads/", ok=(202,)) as response:
            place = urljoin(response.url, response.headers.get("Location", ""))
        place += ("&" if urlsplit(place).query else "?") + urlencode({"digest": digest})
        bodies: list[_Body] = []

        def body() -> Any:
            if bodies:
                progress(-bodies[-1].count)
            bodies.append(_Body(path, size, progress))
            return bodies[-1] if size else b""

        headers = {"Content-Type": "application/octet-stream"}
        try:
            self._send("PUT", place, headers=headers, body=body, ok=(201,)).close()
        except BaseException:
            progress(-bodies[-1].count if bodies else 0)
            raise
        finally:
            for each in bodies:
                each.close()

    def put(self, path: str, data: bytes, media_type: str) -> None:
        """Stores `data` at `path`."""
        self._send("PUT", path, headers={"Content-Type": media_type}, body=lambda: data, ok=(201,)).close()

    def _send(
        self,
        method: str,
        path: str,
        *,
        headers: dict[str, str] | None = None,
        body: Callable[[], Any] = lambda: None,
        ok: tuple[int, ...] = (200,),
    ) -> requests.Response:
        url = urljoin(self._base, path)
        response = self._request(method, url, headers or {}, body())
        if response.status_code == 401 and self._answered(response):
            response = self._request(method, url, headers or {}, body())
        if response.status_code in ok:
            return response
        with response:
            raise self._refusal(method, path, response)

    def _request(self, method: str, url: str, headers: dict[str, str], data: Any) -> requests.Response:
        headers = headers | self._login.headers(url)
        with self._lost():
            return self._session.request(method, url, data=data, headers=headers, stream=True, timeout=_TIMEOUT)

    def _answered(self, challenge: requests.Response) -> bool:
        with challenge, self._lost():
            return self._login.answer(challenge)

    def _refusal(self, method: str, path: str, response: requests.Response) -> TransferError:
        status = response.status_code
        if status in (401, 403):
            return TransferError(
                f"{self.address}: the registry wants a login with rights for this ({status}); "
                f"docker login {self.address.host}"
            )
        if status == 404:
            return TransferError(f"{self.address}: {path.split('?')[0]} is not there (404); push the bundle first")
        message = f"{self.address}: {method} answered {status}{_said(response)}"
        return TransferError(message, passing=status in _PASSING)

    @contextmanager
    def _lost(self) -> Iterator[None]:
        """Says in one line what went wrong on the way."""
        import requests

        try:
            yield
        except requests.exceptions.SSLError as error:
            raise TransferError(f"{self.address}: no trusted TLS connection ({_cause(error)})") from error
        except requests.exceptions.Timeout as error:
            raise TransferError(f"{self.address}: no answer in time; run the command again", passing=True) from error
        except requests.exceptions.RequestException as error:
            raise TransferError(
                f"{self.address}: connection lost ({_cause(error)}); run the command again", passing=True
            ) from error


class _Body:
    """A file that is sent: its length is known, and it counts what has been read."""

    def __init__(self, path: Path, size: int, progress: Progress) -> None:
        self.count = 0
        self._file = open(path, "rb")  # noqa: SIM115 - closed with this object
        self._size, self._progress = size, progress

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(_CHUNK), b"")

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.count += len(data)
        self._progress(len(data))
        return data

    def close(self) -> None:
        self._file.close()


def _said(response: requests.Response) -> str:
    """What the registry says of itself, cut to a line."""
    try:
        said = str(response.json()["errors"][0]["message"])
    except (ValueError, LookupError, TypeError):
        return ""
    return ": " + " ".join(said.split())[:200]


def _cause(error: BaseException) -> str:
    """The innermost reason, such as "Connection refused"."""
    seen: BaseException | None = error
    reason = "it ended early"
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            reason = seen.strerror
        inner = getattr(seen, "reason", None) or next((a for a in seen.args if isinstance(a, BaseException)), None)
        seen = inner if isinstance(inner, BaseException) else seen.__cause__ or seen.__context__
    return reason
