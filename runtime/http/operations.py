"""What each endpoint takes and answers, in the words and types that its OpenAPI description is made of.

Knows nothing of requests; `openapi` puts the description together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tandem.runtime.http.live import Live
from tandem.runtime.http.replies import ChatChoice, ChatChunkChoice, Model, ModelList, Reply, TextChoice
from tandem.runtime.http.schema import ChatBody, CompletionBody
from tandem.runtime.http.tokens import DetokenizeBody, Detokenized, TokenizeBody, Tokenized

STATUSES = {
    400: "Invalid JSON, a wrong type or value, a prompt that leaves no room; `param` names the field",
    401: "An API key is asked for and the Bearer token is another",
    403: "No API key is asked for, and a page of another origin asks",
    404: "Another model than the one that is served",
    405: "The path knows another method",
    408: "The rest of the body did not come in time",
    413: "The body is too long",
    429: "Too many requests wait already; Retry-After says when to come back",
    500: "A pass failed; the message says so",
    503: "Draining, or out of service after a failed pass",
}
ANY = (405, 500, 503)
READS = (400, 404, 408, 413, *ANY)
"""Of an endpoint that reads a body."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`answer` is the type of the JSON body of a 200, or a media type of text; `event` that of each event of a stream.

    No `answer` is a 204. `either` are fields of which a body needs one. `errors` are the statuses of refusals besides
    401 and 403.
    """

    summary: str
    answer: Any
    body: type | None = None
    event: Any = None
    either: tuple[str, ...] = ()
    errors: tuple[int, ...] = ANY


OPERATIONS = {
    "/": Operation("A page to watch and to try it", "text/html"),
    "/favicon.ico": Operation("Nothing: the page brings its own icon", None),
    "/health": Operation("Whether requests are taken", dict[str, str]),
    "/live": Operation("What the page shows", Live),
    "/version": Operation("Version of the server", dict[str, str]),
    "/metrics": Operation("Counts and times in Prometheus' text format", "text/plain"),
    "/openapi.json": Operation("This description", dict[str, Any]),
    "/tokenize": Operation(
        "Token ids of a text or a chat", Tokenized, TokenizeBody, either=("prompt", "messages"), errors=READS
    ),
    "/detokenize": Operation("The text of token ids", Detokenized, DetokenizeBody, errors=READS),
    "/v1/models": Operation("The one model that is served", ModelList),
    "/v1/models/{name:path}": Operation("The model of that name", Model, errors=(404, *ANY)),
    "/v1/completions": Operation(
        "Text that goes on from a prompt", Reply[TextChoice], CompletionBody, Reply[TextChoice], errors=(429, *READS)
    ),
    "/v1/chat/completions": Operation(
        "The answer to messages", Reply[ChatChoice], ChatBody, Reply[ChatChunkChoice], errors=(429, *READS)
    ),
}
"""By path, as the routes spell it."""
