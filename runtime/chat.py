"""From chat messages to the text of a prompt, through the template that came with the checkpoint.

Templates are foreign code: they run in jinja2's sandbox. Knows nothing of tokens or HTTP.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tandem.errors import RequestError

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment


_TOOLS = re.compile(r"\btools\b")
_END = "\ue0fe\uf8d1\ue0fe"
"""Marks where a message ends, in characters that no text has a use for."""


class ChatTemplate:
    """A compiled template. `source` None stands for a bundle without one; rendering then is an error.

    `tokens` are the names templates use for special tokens: `bos_token`, `eos_token`.
    """

    def __init__(self, source: str | None, tokens: Mapping[str, str | None] | None = None) -> None:
        self.source = source
        self._tokens = {name: text or "" for name, text in (tokens or {}).items()}
        self._compiled: Template | None = None

    @property
    def knows_tools(self) -> bool:
        """Whether the template shows tools to the model."""
        return _TOOLS.search(self.source or "") is not None

    @property
    def knows_one_call(self) -> bool:
        """Whether it refuses a message with several calls, as Llama 3's do."""
        return "single tool-calls" in (self.source or "")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text; encode it with `add_special_tokens=False`, for it holds its own markers.

        `messages` hold role, content and whatever else the template reads; `tools` are in OpenAI's form; `variables`
        come from clients and may have any name. Raises RequestError, status 400.
        """
        if self.source is None:
            raise RequestError(
                "this bundle has no chat template; use /v1/completions (or --raw) with a prompt of your own",
                param="messages",
                code="no_chat_template",
            )
        from jinja2 import TemplateError

        given = {"documents": None} | self._tokens | dict(variables or {})
        # Templates ask whether tools are none, or whether they are there: an empty list would be both.
        given |= {"messages": self._known_roles(messages), "tools": [*tools] or None}
        given |= {"add_generation_prompt": add_generation_prompt}
        try:
            self._compiled = self._compiled or _environment().from_string(self.source)
            return self._compiled.render(given)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise RequestError(f"the chat template refuses these messages: {error}", param="messages") from error
        except (RecursionError, MemoryError) as error:
            reason = (
                "is nested without end" if isinstance(error, RecursionError) else "asks for more memory than there is"
            )
            raise RequestError(f"the chat template {reason}", param="messages") from error

    def render_open(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """As `render`, up to the end of the last message's content, for the model to go on with.

        Also RequestError where the template does not write that content as it is, once.
        """
        *before, last = messages
        marked = [*before, {**last, "content": f"{last['content']}{_END}"}]
        text = self.render(marked, tools=tools, add_generation_prompt=False, variables=variables)
        if text.count(_END) != 1:
            raise RequestError(
                "the chat template does not write the last message as it is, so there is no going on with it",
                param="continue_final_message",
            )
        return text[: text.index(_END)]

    def _known_roles(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Templates older than the role `developer` know it as `system`."""
        known = "developer" in (self.source or "")
        return [
            dict(message) | ({} if known or message["role"] != "developer" else {"role": "system"})
            for message in messages
        ]


def plain_content(content: str | Sequence[str] | None) -> str:
    """Content as templates expect it: the parts of a list stand on lines of their own."""
    return content if isinstance(content, str) else "\n".join(content or ())


def _environment() -> ImmutableSandboxedEnvironment:
    """The dialect of Hugging Face templates."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the assistant's words for training; here it only wraps them."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _to_json
    return environment


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it reads, without jinja2's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
