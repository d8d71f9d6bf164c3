"""Calls written as a model of each format would write them, for templates that do not know how.

Knows nothing of templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tandem.runtime.reading.formats import Format

EXAMPLES = {
    Format.HERMES: '<tool_call>\n{"name": <function-name>, "arguments": <arguments-as-json-object>}\n</tool_call>',
    Format.QWEN_XML: (
        "<tool_call>\n<function=function-name>\n<parameter=parameter-name>\nvalue\n</parameter>\n</function>\n</tool_call>"
    ),
    Format.LLAMA: '{"name": <function-name>, "parameters": <arguments-as-json-object>}',
}


def written(form: Format, name: str, arguments: str | Mapping[str, Any]) -> str:
    """A call as text; arguments that are no object are JSON's text already, or meant to be."""
    if form is Format.QWEN_XML and not isinstance(arguments, str):
        values = "".join(f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in arguments.items())
        return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"
    key = "parameters" if form is Format.LLAMA else "arguments"
    text = arguments if isinstance(arguments, str) else _json(arguments)
    call = f'{{"name": {_json(name)}, "{key}": {text}}}'
    return call if form is Format.LLAMA else f"<tool_call>\n{call}\n</tool_call>"


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
