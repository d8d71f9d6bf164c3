"""The page in a real browser: figures that move, the playground, keys, errors; nothing leaves the server."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tandem.runtime.chat import ChatTemplate
from tandem.runtime.http.app import build_app
from tandem.runtime.loading import LoadOptions, load
from tandem.runtime.service import Service
from tests.browser import Browser, Page, browser_at, find_browser
from tests.bundles import compiled
from tests.service import IM_END, IM_START, PATIENCE, ScriptedWorker, on_loopback, scripted_service

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium: install chromium-headless-shell or chromium, or set TANDEM_BROWSER"
)
UNAUTHORIZED, TOO_MANY = "status of 401", "status of 429"
HI_IDS = (IM_START, *b"user\nhi", IM_END, *b"\n", IM_START, *b"assistant\n")
CONTRAST = """(() => {
  const shine = color => {
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map(n => n / 255)
      .map(n => n <= .04045 ? n / 12.92 : ((n + .055) / 1.055) ** 2.4);
    return .2126 * parts[0] + .7152 * parts[1] + .0722 * parts[2];
  };
  const behind = element => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if (!/, 0(\\.\\d+)?\\)$/.test(color)) return color;
    }
  };
  return [...document.querySelectorAll("h1, h2, p, span, th, td, label, button:enabled, .said")]
    .filter(element => element.textContent.trim() && element.checkVisibility())
    .map(element => {
      const pair = [shine(getComputedStyle(element).color), shine(behind(element))].sort((a, b) => b - a);
      return [(pair[0] + .05) / (pair[1] + .05), element.textContent];
    }).sort((a, b) => a[0] - b[0])[0];
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PROGRAM is not None
    with browser_at(PROGRAM) as browser:
        yield browser


@contextmanager
def opened(browser: Browser, service: Service, *, api_key: str | None = None, **look: Any) -> Iterator[Page]:
    """The page of a served service. At the end: no error but those in `page.forgiven`, and nobody else was asked."""
    with on_loopback(build_app(service, api_key=api_key)) as url, browser.page(**look) as page:
        page.open(f"{url}/")
        yield page
        assert [error for error in page.errors if not any(word in error for word in page.forgiven)] == []
        assert {asked for asked in page.urls if not asked.startswith((f"{url}/", "data:"))} == set()


def ask(page: Page, text: str) -> None:
    page.wait("document.getElementById('state').dataset.is === 'live'")
    page.click("#say")
    page.type(text)
    page.press("Enter")


def said(page: Page) -> list[str]:
    """Who said what, in order."""
    turns: list[str] = page.value(
        "[...document.querySelectorAll('.said')].map(e => `${e.classList[1]}: ${e.textContent}`)"
    )
    return turns


def wait_said(page: Page, *turns: str) -> None:
    until = time.monotonic() + PATIENCE
    while (now := said(page)) != list(turns):
        assert time.monotonic() < until, (now, page.errors)
        time.sleep(0.02)


def test_an_answer_is_streamed_and_remembered(browser: Browser) -> None:
    """Its first piece stands there while the rest is still to come. Shift+Enter is part of the message."""
    worker = ScriptedWorker([list(b"one"), [*" <b>zwö</b>".encode(), IM_END]], hold=1)
    with opened(browser, scripted_service(worker)) as page:
        ask(page, "hi")
        wait_said(page, "user: hi", "assistant: one")
        assert page.value("document.getElementById('stop').disabled") is False
        worker.release.set()
        wait_said(page, "user: hi", "assistant: one <b>zwö</b>")
        page.wait("!document.getElementById('send').disabled")
        assert re.match(r"16 tokens · .* tokens/s · first after \d\.\d\d s · stop$", page.text(".turn > .note"))
        page.click("#say")
        page.type("a")
        page.press("Enter", shift=True)
        page.type("b")
        page.press("Enter")
        wait_said(page, "user: hi", "assistant: one <b>zwö</b>", "user: a\nb", "assistant: one <b>zwö</b>")
        answer = (*"one <b>zwö</b>".encode(), IM_END, *b"\n", IM_START)
        second = (*HI_IDS, *answer, *b"user\na\nb", IM_END, *b"\n", IM_START, *b"assistant\n")
        assert [request.prompt for request in worker.requests] == [HI_IDS, second]
        page.wait("!document.getElementById('clear').disabled")
        page.click("#clear")
        wait_said(page)
        ask(page, "hi")
        worker.wait_for_ends(3)
    assert worker.requests[2].prompt == HI_IDS


@pytest.mark.parametrize("way", ["button", "Escape"])
def test_an_answer_is_stopped(browser: Browser, way: str) -> None:
    worker = ScriptedWorker([list(b"x")], endless=True)
    with opened(browser, scripted_service(worker, context_length=10**6)) as page:
        page.value("document.getElementById('most').value = ''")
        ask(page, "go on")
        page.wait("document.querySelector('.said.assistant')?.textContent.length > 20")
        page.wait("document.getElementById('lanes').textContent === '1 of 4'")
        page.wait("parseFloat(document.getElementById('speed').textContent) > 0")
        page.click("#stop") if way == "button" else page.press(way)
        worker.wait_for_ends(1)
        page.wait("!document.getElementById('send').disabled")
        assert page.text(".turn > .note").endswith(" · stopped")
        assert page.value("document.activeElement.id") == "say"
    assert [end.value for end in worker.ends] == ["cancelled"]
    assert worker.requests[0].max_tokens == 10**6 - len(worker.requests[0].prompt)


def test_wishes_reach_the_engine_and_a_bundle_without_a_template_goes_on_with_a_text(browser: Browser) -> None:
    worker = ScriptedWorker([list(b" world")])
    with opened(browser, scripted_service(worker, chat=ChatTemplate(None))) as page:
        page.wait("document.getElementById('how').textContent.includes('no chat template')")
        page.value("document.getElementById('temperature').value = '0.7'")
        page.value("document.getElementById('most').value = '4'")
        ask(page, "hello")
        wait_said(page, "user: hello", "assistant:  wor")
    (request,) = worker.requests
    assert (request.prompt, request.max_tokens, request.sampling.temperature) == (tuple(b"hello"), 4, 0.7)


def test_thoughts_are_folded_away_when_the_answer_begins(browser: Browser) -> None:
    deltas = [{"role": "assistant"}, {"reasoning_content": "hm"}, {"reasoning_content": ", so"}, {"content": "4"}]
    lines = "".join(f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n" for delta in deltas)
    sent = f"const real = fetch; fetch = (path, o) => o.method ? new Response({json.dumps(lines)}) : real(path, o)"
    with opened(browser, scripted_service(ScriptedWorker())) as page:
        page.value(sent)
        ask(page, "2+2")
        wait_said(page, "user: 2+2", "assistant: 4")
        assert page.text("details p") == "hm, so" and page.value("document.querySelector('details').open") is False


def test_an_error_is_told_and_the_message_is_not_lost(browser: Browser) -> None:
    worker = ScriptedWorker([list(b"one")], full=True)
    with opened(browser, scripted_service(worker)) as page:
        page.forgiven = (TOO_MANY,)
        ask(page, "hi")
        wait_said(page, "user: hi", "error: 64 requests are waiting already; try again later")
        page.wait("document.getElementById('say').value === 'hi'")
        page.value("document.getElementById('temperature').value = '3'")
        page.press("Enter")
        assert page.value("document.querySelector('form#ask').checkValidity()") is False
    assert worker.requests == []


def test_a_key_is_asked_for_and_kept_for_the_tab_alone(browser: Browser) -> None:
    key = "schlüssel 1"
    with opened(browser, scripted_service(ScriptedWorker([list(b"one")])), api_key=key) as page:
        page.wait("document.getElementById('door').open")
        assert [url.rsplit("/", 1)[1] for url in page.urls if url.startswith("http")] == [""], (
            "nothing is asked in vain"
        )
        page.forgiven = (UNAUTHORIZED,)
        page.type("wrong")
        page.press("Enter")
        page.wait("document.getElementById('wrong').textContent.includes('does not take')")
        assert page.text("#model") == ""
        page.type(f" {key} ")
        page.press("Enter")
        page.wait("!document.getElementById('door').open && document.getElementById('model').textContent === 'tiny'")
        assert page.value("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
        ask(page, "hi")
        wait_said(page, "user: hi", "assistant: one")
        page.call("Page.reload")
        page.wait(
            "document.getElementById('model')?.textContent === 'tiny' && document.querySelector('.said') === null"
        )
        page.click("#forget")
        page.wait("document.getElementById('door').open && sessionStorage.length === 0")
        assert not any("schl" in url for url in page.urls)


def test_a_server_out_of_service_and_one_that_is_gone(browser: Browser) -> None:
    worker = ScriptedWorker()
    with opened(browser, scripted_service(worker)) as page:
        page.wait("document.getElementById('state').textContent === 'live'")
        worker.healthy = False
        page.wait("document.getElementById('state').textContent === 'out of service: a pass failed'")
        page.forgiven = ("ERR_INTERNET_DISCONNECTED",)
        nothing = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        page.call("Network.emulateNetworkConditions", offline=True, **nothing)
        page.wait("document.getElementById('state').textContent === 'no answer from the server'")


@pytest.mark.parametrize("dark", [False, True])
def test_it_can_be_read_and_used_by_anyone(browser: Browser, dark: bool) -> None:
    """Text stands out from its ground as WCAG AA asks, a narrow screen cuts nothing off, all controls have names."""
    worker = ScriptedWorker([list(b"one")])
    with opened(browser, scripted_service(worker), width=340, height=700, dark=dark) as page:
        ask(page, "hi")
        page.wait("document.querySelector('.turn > .note')")
        ratio, where = page.value(CONTRAST)
        assert ratio >= 4.5, where
        assert page.value("document.documentElement.scrollWidth") <= 340
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    controls = [node for node in nodes if _focusable(node) and node["role"]["value"] != "RootWebArea"]
    assert len(controls) >= 8
    assert [node for node in controls + _images(nodes) if not node["name"]["value"]] == []


def test_the_tab_key_goes_through_all_controls_in_reading_order(browser: Browser) -> None:
    with opened(browser, scripted_service(ScriptedWorker())) as page:
        page.wait("document.getElementById('state').dataset.is === 'live'")
        visited = []
        for _ in range(8):
            page.press("Tab")
            visited.append(page.value("document.activeElement.id"))
    assert visited == ["classes", "rows", "clear", "talk", "say", "temperature", "most", "send"]


def _focusable(node: dict[str, Any]) -> bool:
    return any(p["name"] == "focusable" and p["value"]["value"] for p in node.get("properties", ()))


def _images(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [node for node in nodes if not node["ignored"] and node["role"]["value"] in ("image", "img")]


@pytest.fixture(scope="module")
def bundle() -> Path:
    return compiled("llama", "fp32")


def test_a_real_bundle(browser: Browser, bundle: Path) -> None:
    """The figures move while an answer is made; it is the text that other clients get; prices are the bundle's."""
    service = load(bundle, LoadOptions(trust_native=True, threads=1))
    try:
        with opened(browser, service) as page:
            page.wait("document.getElementById('lanes').textContent === `0 of 4`")
            assert page.text("#speed") == "0.0" and page.text("#each") == "–"
            page.value("document.getElementById('most').value = 150")
            ask(page, "the capital")
            page.wait("document.querySelector('.turn > .note')")
            page.wait("parseFloat(document.getElementById('speed').textContent) > 0")
            base = page.value("location.origin")
            live = json.loads(urllib.request.urlopen(f"{base}/live").read())
            tokens, totals = live["totals"]["tokens"], live["totals"]
            page.wait(f"document.getElementById('total').textContent === '{tokens} since the start'")
            each = totals["round_tokens"] / totals["lane_rounds"]
            assert float(page.text("#each")) == pytest.approx(each, abs=0.006)
            assert page.text("#rounds-all") == f"{sum(live['rounds'].values())} since the start"
            page.click("#rows")
            page.press("ArrowRight")
            rows = page.value("Number(document.getElementById('rows').value)")
            priced = [f"{kind} {live['prices'][0][kind][rows - 1]:.2f} ms" for kind in ("plain", "chain", "tree")]
            assert page.text("#price") == "".join([f"{rows} rows", *priced])
            assert page.value("document.querySelectorAll('#stairs path.step').length") == 3
            messages = [{"role": "user", "content": "the capital"}]
            body = json.dumps({"messages": messages, "max_tokens": 150}).encode()
            reply = json.loads(urllib.request.urlopen(f"{base}/v1/chat/completions", body).read())
            assert said(page)[1] == "assistant: " + reply["choices"][0]["message"]["content"]
    finally:
        service.worker.stop()
