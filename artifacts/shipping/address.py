"""Where bundles are shipped to and from: `oci://host[:port]/repository:tag` and `hf://owner/name[@revision]`.

Knows nothing of protocols.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from tandem.errors import UsageError

_PATH = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_OCI = re.compile(
    r"oci://(?P<host>(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?)"
    rf"/(?P<repository>{_PATH}(?:/{_PATH})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127})|@(?P<digest>sha256:[0-9a-f]{64}))"
)
_HUB = re.compile(r"hf://(?P<repository>[A-Za-z0-9._-]+/[A-Za-z0-9._-]+)(?:@(?P<revision>[A-Za-z0-9._/-]+))?")


@dataclass(frozen=True, slots=True)
class OciAddress:
    """A repository of a registry (`host` with its port) and a tag in it, or a digest `sha256:...`."""

    host: str
    repository: str
    reference: str

    def __str__(self) -> str:
        return f"oci://{self.host}/{self.repository}{'@' if self.is_digest else ':'}{self.reference}"

    @property
    def is_digest(self) -> bool:
        return ":" in self.reference

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine, where nobody listens in and few have certificates."""
        name = re.sub(r":[0-9]+\Z", "", self.host).strip("[]")
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return name == "localhost"


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A model repository `owner/name` of a Hugging Face hub, and a branch, tag or commit of it (None: its main one)."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"hf://{self.repository}" + (f"@{self.revision}" if self.revision else "")


def parse(text: str) -> OciAddress | HubAddress:
    """The address that `text` spells. UsageError otherwise."""
    if match := _OCI.fullmatch(text):
        return OciAddress(match["host"], match["repository"], match["tag"] or match["digest"])
    if match := _HUB.fullmatch(text):
        return HubAddress(match["repository"], match["revision"])
    raise UsageError(f"{text}: no place for bundles; give oci://HOST/REPOSITORY:TAG or hf://OWNER/NAME")
