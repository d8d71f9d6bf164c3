"""Lookup against plain decoding of the same bundle: a copy, edits of a file, chats and requests for code.

Both give the same ids, which is checked. A chat ends where the model ends it, as it would for a user.
"""

from __future__ import annotations

from figure import Figure
from figures.context import Context
from figures.ways import PLAIN, Way, measure
from prompts import Prompt
from spread import Goal

NEVER_SLOWER = Goal(0.98, 1.0)
EDITS = Goal(1.3, 1.6)
COPIES = {"bf16": Goal(2.5, 4.0), "int8": Goal(3.0, 5.0)}
WAYS = (PLAIN, Way("lookup"))


def copy(context: Context, profile: str) -> Figure:
    title = "a source file begun again, lookup against plain"
    return _measure(context, profile, "copy", title, [context.prompts.copy()], 2, COPIES.get(profile))


def edit(context: Context, profile: str) -> Figure:
    title = "a chat that asks to edit a file of 60 lines, lookup against plain"
    return _measure(context, profile, "edit", title, context.prompts.edits(), 3, EDITS)


def chat(context: Context, profile: str) -> Figure:
    title = "chats, lookup against plain"
    return _measure(context, profile, "chat", title, context.prompts.chats(), 2, NEVER_SLOWER)


def code(context: Context, profile: str) -> Figure:
    title = "requests for code, lookup against plain"
    return _measure(context, profile, "code", title, context.prompts.code(), 2, NEVER_SLOWER)


def _measure(
    context: Context, profile: str, name: str, title: str, prompts: list[Prompt], length: int, goal: Goal | None
) -> Figure:
    """Plain and lookup follow each other on every prompt, `length` times the usual tokens at most."""
    figure = Figure(f"{name}-{profile}", f"{title}, {profile}")
    return measure(context, profile, figure, prompts, WAYS, length * context.tokens, goal)
