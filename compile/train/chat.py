"""Questions and answers made from documented functions: write this one, say what this one does."""

from __future__ import annotations

import ast
import warnings
import zlib
from collections.abc import Iterator

from tandem.compile.train.documents import CHAT, Document

MAX_PER_FILE = 2
MIN_LINES, MAX_LINES = 3, 40
MIN_SUMMARY, MAX_ANSWER = 25, 600

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Exchange = tuple[str, str]
"""What the user says, what the assistant answers."""


def exchanges(document: Document) -> Iterator[Exchange]:
    """Up to two exchanges about the functions of a file of code; the same file gives the same ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(document.text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and _is_fit(node)]
    functions.sort(key=lambda node: zlib.crc32(node.name.encode()))
    for node in functions[:MAX_PER_FILE]:
        yield _exchange(node, document.text)


def messages(document: Document, exchange: Exchange) -> Document:
    """The exchange as a document of the chat domain, its turns parted by NUL."""
    return Document(CHAT, document.package, document.path, document.held_out, "\0".join(exchange))


def _is_fit(node: ast.FunctionDef) -> bool:
    summary = _summary(node)
    lines = (node.end_lineno or 0) - node.lineno
    return len(summary) >= MIN_SUMMARY and MIN_LINES <= lines <= MAX_LINES and not node.name.startswith("test")


def _summary(node: ast.FunctionDef) -> str:
    """The first paragraph of the docstring on one line."""
    return " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())


def _exchange(node: ast.FunctionDef, text: str) -> Exchange:
    lines = text.splitlines()
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    source = "\n".join(lines[first : node.end_lineno])
    arguments = ", ".join(argument.arg for argument in node.args.args)
    form = zlib.crc32(source.encode()) % 3
    if form == 0:
        return f"Write a Python function `{node.name}({arguments})`. {_summary(node)}", f"```python\n{source}\n```"
    if form == 1:
        return f"{_summary(node)}\n\nShow me this in Python.", f"```python\n{source}\n```"
    docstring = node.body[0]
    bare = [*lines[first : docstring.lineno - 1], *lines[docstring.end_lineno or 0 : node.end_lineno]]
    question = "What does this function do?\n\n```python\n" + "\n".join(bare) + "\n```"
    paragraphs = (ast.get_docstring(node) or "")[:MAX_ANSWER].split("\n\n")
    return question, "\n\n".join(paragraphs[: max(1, len(paragraphs) - 1)]).strip()
