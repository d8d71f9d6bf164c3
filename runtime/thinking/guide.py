"""The guide that closes a block of thoughts: when its budget is spent, or when its watcher sees a loop.

The closing text's tokens go through the engine like all others; each is simply the only one its row may give. Where it
begins is a function of the text alone. Knows nothing of requests, templates or HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tandem.runtime.thinking.block import BlockReader, Phase, Place
from tandem.runtime.thinking.watcher import Loop, Watcher
from tandem.tree import DraftTree

BUDGET = "budget"
REASONS = (BUDGET, *Loop)
"""Why a block was closed for the model."""

SOURCE = "closing"
"""What trees and metrics call the tokens of a closing text."""


@dataclass(frozen=True, slots=True)
class Closings:
    """Token ids that close a block: `bare` one without thoughts of the answer, `usual` any other."""

    usual: tuple[int, ...]
    bare: tuple[int, ...]


class Course(NamedTuple):
    """How things stand behind a token. `due` is what must follow, for `reason`; `watched` if the watcher knows it."""

    place: Place
    due: tuple[int, ...] = ()
    reason: str = ""
    watched: bool = False

    @property
    def settled(self) -> bool:
        """Whether the block is behind, its closing text too."""
        return self.place.phase is Phase.OVER and not self.due


class ThoughtsGuide:
    """Closes the block after `budget` thoughts (None: any number), or when `watcher` says so.

    An answer that begins `in_thoughts` has its block open from the start; thoughts that the prompt has of it are none.
    `closed` hears once why, when the first token of the closing text is committed.
    """

    def __init__(
        self,
        reader: BlockReader,
        in_thoughts: bool,
        closings: Closings,
        *,
        budget: int | None,
        watcher: Watcher | None = None,
        closed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._reader, self._closings, self._budget, self._watcher = reader, closings, budget, watcher
        self._closed: Callable[[str], None] | None = closed
        self._courses = [self._bounded(reader.begin(in_thoughts))]  # behind the text, and behind each token of `_ahead`
        self._ahead: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        self._behind(tokens)
        if self._closed and (reason := next((c.reason for c in self._courses[: len(tokens)] if c.due), "")):
            self._closed(reason)
            self._closed = None
        del self._courses[: len(tokens)], self._ahead[: len(tokens)]

    def changes(self, said: Sequence[int]) -> bool:
        return bool(self._behind(said).due)

    def keeps(self, token: int, said: Sequence[int]) -> bool:
        return self._behind(said).due[:1] in ((), (token,))

    def applied(self, logits: np.ndarray, said: Sequence[int]) -> np.ndarray:
        due = self._behind(said).due
        if not due:
            return logits
        only = np.full(len(logits), -np.inf, np.float32)
        only[due[0]] = 0.0
        return only

    def num_settled(self, said: Sequence[int]) -> int | None:
        """How many of `said` stand behind the block and its closing text; None while it is open or being closed."""
        if not self._behind(said).settled:
            return None
        return sum(course.settled for course in self._courses[: len(said)])

    def cut(self, tree: DraftTree) -> DraftTree:
        """Nodes that a closing text leaves no room for go, and its rest is added as a path of probability 1.

        What the watcher would make of a draft is not asked.
        """
        if not self._closes_within(tree):
            return tree
        kept, due = self._possible(tree), self._courses[0].due
        if not due:
            return kept
        line = DraftTree.chain(tree.tokens[0], due, [1.0] * len(due), SOURCE)
        return line.merged(kept) if kept.num_drafted else line

    def _possible(self, tree: DraftTree) -> DraftTree:
        courses, kept = {0: self._courses[0]}, [0]
        for node in range(1, len(tree)):
            above = courses.get(tree.parents[node])
            if above is not None and tree.tokens[node] in (above.due[:1] or (tree.tokens[node],)):
                courses[node] = self._after(above, tree.tokens[node])
                kept.append(node)
        return tree.subset(kept)

    def _closes_within(self, tree: DraftTree) -> bool:
        """Whether a closing text may begin above some node of `tree`."""
        course = self._courses[0]
        if course.place.phase is Phase.OVER and not course.due:
            return False
        budget = self._budget
        return bool(course.due) or (budget is not None and budget - course.place.thoughts < len(tree))

    def _behind(self, said: Sequence[int]) -> Course:
        """Behind the text and `said`. What was ahead in a draft and did not come is taken back."""
        ahead, same = self._ahead, 0
        for known, token in zip(ahead, said, strict=False):
            if known != token:
                break
            same += 1
        if same < len(said):
            self._take_back(same)
            self._go_on(said[same:])
        return self._courses[len(said)]

    def _go_on(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            before = self._courses[-1]
            course = self._after(before, token)
            if self._watcher and not before.reason and course.place.thoughts > before.place.thoughts:
                loop = self._watcher.push(token)
                course = course._replace(watched=True)
                if loop and not course.due:
                    course = course._replace(due=self._closing(course.place), reason=loop)
            self._courses.append(course)
            self._ahead.append(token)

    def _take_back(self, length: int) -> None:
        while len(self._ahead) > length:
            self._ahead.pop()
            if self._courses.pop().watched and self._watcher:
                self._watcher.pop()

    def _after(self, course: Course, token: int) -> Course:
        """Behind one more token, the watcher not asked."""
        place = self._reader.after(course.place, token)
        if course.reason:
            return Course(place, course.due[1:], course.reason)
        return self._bounded(place)

    def _bounded(self, place: Place) -> Course:
        spent = self._budget is not None and place.thoughts >= self._budget
        if spent and place.phase is Phase.OPEN:
            return Course(place, self._closing(place), BUDGET)
        return Course(place)

    def _closing(self, place: Place) -> tuple[int, ...]:
        return self._closings.usual if place.thoughts else self._closings.bare
