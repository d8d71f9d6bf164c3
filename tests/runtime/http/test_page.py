"""The page as it is sent: its size, what browsers let it do, and who may have it."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

from starlette.testclient import TestClient

from tandem.runtime.http.app import build_app
from tests.service import ScriptedWorker, scripted_service

MAX_BYTES = 40_000


def client_of(**options: object) -> TestClient:
    return TestClient(build_app(scripted_service(ScriptedWorker()), **options))  # type: ignore[arg-type]


class Inside(HTMLParser):
    """Texts of `script` and `style`, ids, and attributes that make a browser run or fetch something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self.ids: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self._tag = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("src", "href", "action", "srcset", "data"):
                self.links.append(value or "")
            elif name == "style" or name.startswith("on"):
                self.handlers.append(name)

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag in self.texts:
            self.texts[self._tag].append(data)


def test_the_page() -> None:
    with client_of() as client:
        response = client.get("/")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert len(response.content) < MAX_BYTES
    assert {response.headers["x-content-type-options"], response.headers["x-frame-options"]} == {"nosniff", "DENY"}
    assert response.headers["cache-control"] == "no-cache"


def test_it_runs_what_it_brings_and_asks_this_server_alone() -> None:
    """The policy names the digests of the very bytes that were sent; nothing else would run."""
    with client_of(api_key="k") as client:
        response = client.get("/")
    page = Inside(response.text)
    policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    for tag, texts in page.texts.items():
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert len(texts) == 1 and policy[f"{tag}-src"] == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert (policy["default-src"], policy["connect-src"], policy["img-src"]) == ("'none'", "'self'", "data:")
    assert {policy[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert page.handlers == [], "the policy forbids them"
    assert [link[:5] for link in page.links] == ["data:"]
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org/2000/svg)", response.text)


def test_its_script_finds_every_element_it_names() -> None:
    with client_of() as client:
        page = Inside(client.get("/").text)
    (script,) = page.texts["script"]
    assert len(page.ids) == len(set(page.ids))
    named = set(re.findall(r'(?:\$|show|fill)\("([\w-]+)"', script))
    assert named <= set(page.ids)
    assert "innerHTML" not in script and "localStorage" not in script


def test_the_page_needs_no_key_and_its_figures_do() -> None:
    with client_of(api_key="s3cret") as client:
        assert '<meta name="api-key" content="required">' in client.get("/").text
        assert client.get("/favicon.ico").status_code == 204
        assert client.get("/live").status_code == 401
        assert client.get("/live", headers={"authorization": "Bearer s3cret"}).status_code == 200
        for path in ("/page.html", "/index.html", "/favicon.ico/"):
            assert client.get(path).status_code == 401
        assert "s3cret" not in client.get("/").text
    with client_of() as client:
        assert '<meta name="api-key" content="none">' in client.get("/").text


def test_a_page_and_its_icon_are_only_read() -> None:
    with client_of() as client:
        assert client.head("/").status_code == 200
        for path in ("/", "/favicon.ico", "/live"):
            assert client.post(path).status_code == 405
            first, second = (client.get(path).headers.get_list("x-request-id") for _ in range(2))
            assert len(first) == len(second) == 1 and first != second
