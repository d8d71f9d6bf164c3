"""Who we are to a registry: answers its challenge with the logins that Docker keeps on this machine.

Knows nothing of what is asked for. The library oras finds the login and trades it for a token.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tandem.artifacts.shipping.address import OciAddress

if TYPE_CHECKING:
    import requests


class Login:
    """Headers for requests to the repository of `address`; none until the registry has asked for some."""

    def __init__(self, address: OciAddress, session: requests.Session, *, plain_http: bool) -> None:
        self._address, self._session, self._plain = address, session, plain_http
        self._authorization: str | None = None

    def headers(self, url: str) -> dict[str, str]:
        """What to send along to `url`: nothing to another host, to which a registry may direct an upload."""
        ours = urlsplit(url).netloc == self._address.host
        return {"Authorization": self._authorization} if ours and self._authorization else {}

    def answer(self, challenge: requests.Response) -> bool:
        """Takes up the challenge of a 401; False if we have no answer. RequestException as the session raises it."""
        import oras.auth
        import oras.container

        container = oras.container.Container(self._address.repository)
        container.registry = self._address.host
        basic = challenge.headers.get("WWW-Authenticate", "").lower().startswith("basic")
        backend = oras.auth.get_auth_backend("basic" if basic else "token", self._session, self._plain)
        folder = os.environ.get("DOCKER_CONFIG")
        backend.load_configs(container, [os.path.join(folder, "config.json")] if folder else None)
        if basic and not hasattr(backend, "_basic_auth"):
            return False
        # Always a fresh token: oras would send the one it has again, though it is too old or for reading only.
        headers, answered = backend.authenticate_request(challenge, {}, **({} if basic else {"refresh": True}))
        self._authorization = headers.get("Authorization")
        return bool(answered)
