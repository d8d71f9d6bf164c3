"""Places bundles are shipped to, as users spell them."""

from __future__ import annotations

import pytest

from tandem.artifacts.shipping.address import HubAddress, OciAddress, parse
from tandem.errors import UsageError

SHA = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("oci://ghcr.io/me/models/tiny:v1", OciAddress("ghcr.io", "me/models/tiny", "v1")),
        ("oci://localhost:5000/tiny:bf16-v2_1", OciAddress("localhost:5000", "tiny", "bf16-v2_1")),
        (f"oci://[::1]:5000/a/b@{SHA}", OciAddress("[::1]:5000", "a/b", SHA)),
        ("hf://me/tiny", HubAddress("me/tiny", None)),
        ("hf://me/tiny.bf16@refs/pr/1", HubAddress("me/tiny.bf16", "refs/pr/1")),
    ],
)
def test_an_address_is_spelt_as_it_is_read(text: str, address: object) -> None:
    assert parse(text) == address and str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "tiny", "/models/tiny", "https://ghcr.io/tiny:v1", "docker://a/b:c", "oci://", "oci:///a:b"),
        *("oci://host/tiny", "oci://host/Tiny:v1", "oci://host/../x:v1", "oci://host/a:b/c", "oci://user@host/a:b"),
        *("oci://host/a@sha256:ab", "oci://host/a?b:c", "hf://tiny", "hf://a/b/c", "hf://a/b@", "hf://a/b\n"),
    ],
)
def test_anything_else_is_no_place(text: str) -> None:
    with pytest.raises(UsageError, match="no place for bundles"):
        parse(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *[(host, True) for host in ("localhost", "localhost:5000", "127.0.0.1", "127.9.9.9:80", "[::1]:5000")],
        *[(host, False) for host in ("ghcr.io", "localhost.evil.com", "10.0.0.1:5000", "[::2]", "127.0.0.1.x.com")],
    ],
)
def test_only_loopback_is_spoken_to_in_the_clear(host: str, loopback: bool) -> None:
    assert OciAddress(host, "a", "b").is_loopback is loopback
