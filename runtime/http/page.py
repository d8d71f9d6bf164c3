"""The page at `/`: one file with its own style and script, which browsers keep to this server.

Knows nothing of what the page shows; it asks `/live` and the endpoints as any client does.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FILE = Path(__file__).with_name("page.html")
KEY_MARK = '<meta name="api-key" content="none">'
INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


class Page:
    """The page as it is sent to everybody. It says whether a key is asked for, so that no request is spent on that."""

    def __init__(self, *, asks_for_key: bool) -> None:
        text = FILE.read_text(encoding="utf-8")
        self._text = text.replace(KEY_MARK, KEY_MARK.replace("none", "required")) if asks_for_key else text
        self._headers = {
            "cache-control": "no-cache",
            "content-security-policy": policy(text),
            "cross-origin-opener-policy": "same-origin",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "x-frame-options": "DENY",
        }

    async def show(self, request: Request) -> Response:
        return Response(self._text, headers=self._headers, media_type="text/html")


async def no_icon(request: Request) -> Response:
    """The page brings its own; browsers ask for this one wherever they show something else."""
    return Response(status_code=204)


def policy(text: str) -> str:
    """A Content-Security-Policy that runs what stands in `text`, nothing else, and lets it ask this server alone."""
    digests: dict[str, list[str]] = {"script": [], "style": []}
    for tag, inside in INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        digests[tag].append(f"'sha256-{digest}'")
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(digests['script'])}",
            f"style-src {' '.join(digests['style'])}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
