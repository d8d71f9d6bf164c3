"""Records answers with what is drafted at each of their positions: plain decoding, whose drafts are kept and not used.

Knows nothing of the file's format or of what the prompts mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.errors import TandemError, UsageError
from tandem.keys import DRAFTER_KINDS, FIRST_CONTEXT_CLASS, Kind
from tandem.prices import LEAST_MS, PriceModel
from tandem.runtime.checks.recording import Recording, Text
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.engine import Engine
from tandem.runtime.executor.base import Executor
from tandem.runtime.loading import lane_pages, open_executor
from tandem.runtime.request import FinishReason, LaneStats, Request, Sampling
from tandem.tree import DraftTree

if TYPE_CHECKING:
    from tandem.artifacts.reader import Bundle


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a text is recorded behind; `chat` ones are a user's turn, others are gone on with."""

    workload: str
    text: str
    chat: bool


@dataclass(slots=True)
class Kept:
    """A router that keeps all candidates by context length and has every round be plain."""

    drafts: dict[int, list[DraftTree]] = field(default_factory=dict)
    draft_ms: dict[int, float] = field(default_factory=dict)

    def open(self, lane: int) -> None:
        self.drafts, self.draft_ms = {}, {}

    def close(self, lane: int) -> None:
        pass

    def turn_pays(self, context: int, backlog: int, num_tokens: float, sync_ms: float) -> bool:
        return True

    def rests(self, lane: int, context: int) -> int:
        return 0

    def wants_model(
        self, candidates: list[list[DraftTree]], contexts: list[int], max_rows: int, lanes: list[int], source: str
    ) -> bool:
        return True

    def choose(
        self,
        candidates: list[list[DraftTree]],
        contexts: list[int],
        max_rows: int,
        lanes: list[int],
        draft_ms: Mapping[str, float] | None = None,
    ) -> list[DraftTree]:
        self.drafts[contexts[0]] = candidates[0]
        self.draft_ms[contexts[0]] = sum((draft_ms or {}).values())
        return []

    def passed(self, lanes: list[int], contexts: list[int], ms: float, asked_ms: float, host_ms: float) -> None:
        pass

    def settle(self, committed: list[list[int]], ms: float, asked_ms: float, host_ms: float) -> None:
        pass


@dataclass(slots=True)
class Answer:
    """A sink of one answer."""

    ids: list[int] = field(default_factory=list)
    error: TandemError | None = None

    def tokens(self, ids: list[int]) -> bool:
        self.ids += ids
        return False

    def finished(self, reason: FinishReason, stats: LaneStats, error: TandemError | None) -> None:
        self.error = error


def record_texts(
    bundle: Bundle,
    prompts: Sequence[tuple[str, tuple[int, ...], frozenset[int]]],
    num_tokens: int,
    temperature: float,
    threads: int | None,
    advance: Callable[[str], None] = lambda name: None,
) -> Recording:
    """A recording of one text behind each (workload, prompt ids, stop ids), with what `bundle` drafts as it serves.

    Sampled texts are seeded by their number.
    """
    longest = max(len(ids) for _, ids, _ in prompts) + num_tokens
    num_pages = min(lane_pages(bundle.geometry, longest), lane_pages(bundle.geometry, bundle.geometry.context_length))
    executor = open_executor(bundle, threads=threads, num_pages=num_pages, num_slots=1)
    engine, kept = recorder(executor)
    try:
        texts = []
        for number, (workload, ids, stop_ids) in enumerate(prompts):
            advance(f"{workload} {number}")
            sampling = Sampling(temperature=temperature, seed=number if temperature else None)
            request = Request(ids, num_tokens, sampling=sampling, stop_ids=stop_ids)
            texts.append(record(engine, kept, request, f"{workload} {number}", workload))
    finally:
        engine.close()
    about = {"model": bundle.manifest.name, "content_id": bundle.manifest.content_id, "temperature": temperature}
    return Recording(texts, bundle.prices, executor.num_slots > 0, about)


def recorder(executor: Executor) -> tuple[Engine, Kept]:
    """An engine of one lane that drafts whatever there is at every position, as if a model's passes were free."""
    free = {kind: {"1": LEAST_MS} for kind in DRAFTER_KINDS}
    passes = {kind: {"1": 1.0} for kind in (Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE)}
    prices, kept = PriceModel({str(FIRST_CONTEXT_CLASS): passes | free}, live=False), Kept()
    return Engine(executor, drafters=lookup_drafters(), models=True, prices=prices, router=kept, max_lanes=1), kept


def record(engine: Engine, kept: Kept, request: Request, name: str, workload: str) -> Text:
    """The answer to `request` of an `engine` of one lane whose router is `kept`."""
    sink = Answer()
    engine.submit(request, sink)
    while engine.step():
        pass
    if sink.error is not None:
        raise sink.error
    first, positions = len(request.prompt) - 1, range(len(sink.ids))
    drafts = [kept.drafts.get(first + position, []) if position else [] for position in positions]
    draft_ms = [kept.draft_ms.get(first + position, 0.0) if position else 0.0 for position in positions]
    return Text(name, workload, len(request.prompt), sink.ids, drafts, draft_ms)


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a JSONL file: {"workload": name, "prompt": text} or {"workload": name, "message": a user's turn}."""
    prompts = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            (kind,) = entry.keys() - {"workload"}
            text = entry[kind]
            if kind not in ("prompt", "message") or not isinstance(text, str) or not text:
                raise ValueError(f"{kind!r} holds no text")
            prompts.append(Prompt(str(entry["workload"]), text, kind == "message"))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UsageError(
                f'{path}, line {number}: not {{"workload": name, "prompt" or "message": text}} ({error})'
            ) from error
    if not prompts:
        raise UsageError(f"{path}: holds no prompt")
    return prompts
