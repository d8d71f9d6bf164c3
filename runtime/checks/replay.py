"""Replays policies on recorded texts: which rows each would have verified, what that commits and costs.

Exact, as what is drafted at a position depends on the text alone and the text on nothing. Prices are the recording's;
no pass is run. Knows nothing of tables or files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.prices import PriceModel
from tandem.runtime.acceptance import walk
from tandem.runtime.checks.policies import EarlyStop, Knowing, Oracle, Prophet, true_chances
from tandem.runtime.checks.recording import Recording, Text
from tandem.runtime.drafters.base import MODELS
from tandem.runtime.round import Router
from tandem.runtime.router.choice import check_name, make_router
from tandem.runtime.router.staircut import StairCut
from tandem.tree import DraftTree

DECILES = 10
END = -1  # what stands behind a text


@dataclass(slots=True)
class Tally:
    """What a policy came to on some texts. `predicted` and `accepted` are drafted nodes, over all and by tenths of the
    chance that the policy gave them, in rounds whose end is not the text's."""

    rounds: int = 0
    drafted_rounds: int = 0
    tokens: int = 0
    rows: int = 0
    ms: float = 0.0
    host_us: list[float] = field(default_factory=list)
    predicted: list[float] = field(default_factory=lambda: [0.0] * DECILES)
    accepted: list[int] = field(default_factory=lambda: [0] * DECILES)
    judged: int = 0

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return 1e3 * self.tokens / self.ms if self.ms else 0.0

    @property
    def promise(self) -> float:
        """Predicted over committed tokens a round."""
        return (self.judged + sum(self.predicted)) / (self.judged + sum(self.accepted)) if self.judged else 1.0

    def judge(self, tree: DraftTree, path: Sequence[int]) -> None:
        """What the policy said of the nodes of `tree`, of which `path` was accepted."""
        self.judged += 1
        on_path = set(path)
        for node in range(1, len(tree)):
            tenth = min(DECILES - 1, int(tree.scores[node] * DECILES))
            self.predicted[tenth] += tree.scores[node]
            self.accepted[tenth] += node in on_path

    def add(self, other: Tally) -> None:
        for name in ("rounds", "drafted_rounds", "tokens", "rows", "ms", "judged"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.host_us += other.host_us
        self.predicted = [a + b for a, b in zip(self.predicted, other.predicted, strict=True)]
        self.accepted = [a + b for a, b in zip(self.accepted, other.accepted, strict=True)]


class Replay:
    """Plays one router over the texts of a recording, one lane; None decodes plainly."""

    def __init__(self, recording: Recording, router: Router | None) -> None:
        self._prices, self._recurrent, self._router = PriceModel(recording.prices), recording.recurrent, router

    def play(self, text: Text) -> Tally:
        """The text from its second token on: the first is the prefill's."""
        tally, position, router = Tally(), 1, self._router
        if router is not None:
            router.open(0)
        while position < len(text.tokens):
            position += self._round(text, position, tally)
        if router is not None:
            router.close(0)
        return tally

    def _round(self, text: Text, position: int, tally: Tally) -> int:
        """One round; how many tokens it commits."""
        context, ahead = text.context(position), text.tokens[position:]
        began = perf_counter()
        tree, draft_ms = self._choice(text, position)
        host = perf_counter() - began
        path, committed = walk(tree, lambda node, said: ahead[len(said)] if len(said) < len(ahead) else END, (END,))
        committed = committed[: len(ahead)]
        ms = draft_ms + self._ms(context, tree, len(path))
        if self._router is not None and (text.drafts[position] or draft_ms):
            began = perf_counter()
            self._router.settle([committed], ms, 0.0, 0.0)  # the host's part has no price
            tally.host_us.append(1e6 * (host + perf_counter() - began))
            if max(tree.depths()) < len(ahead):
                tally.judge(tree, path)
        tally.rounds += 1
        tally.drafted_rounds += tree.num_drafted > 0
        tally.tokens += len(committed)
        tally.rows += len(tree)
        tally.ms += ms
        return len(committed)

    def _choice(self, text: Text, position: int) -> tuple[DraftTree, float]:
        """What the router has verified, and what drafting took."""
        router, drafts, contexts = self._router, text.drafts[position], [text.context(position)]
        plain, draft_ms = DraftTree.root(text.tokens[position - 1]), text.draft_ms[position]
        if router is None or not (drafts or draft_ms):
            return plain, 0.0
        if isinstance(router, Knowing):
            router.be_told(text, position)
        asked: dict[str, float] = {}
        if draft_ms:
            source = next((s for tree in drafts for s in tree.sources if s in MODELS), min(MODELS))
            free = [tree for tree in drafts if MODELS.isdisjoint(tree.sources)]
            if router.wants_model([free], contexts, MAX_TREE_ROWS, [0], source):
                asked = {source: draft_ms}
            else:
                drafts, draft_ms = free, 0.0
        trees = router.choose([drafts], contexts, MAX_TREE_ROWS, [0], asked)
        return trees[0] if trees else plain, draft_ms

    def _ms(self, context: int, tree: DraftTree, num_accepted: int) -> float:
        if not tree.num_drafted:
            return self._prices.ms(context, Kind.EXTEND, 1)
        kind = Kind.VERIFY_CHAIN if tree.is_chain else Kind.VERIFY_TREE
        ms = self._prices.ms(context, kind, len(tree))
        moved = self._recurrent or kind is Kind.VERIFY_TREE
        return ms + (self._prices.ms(context, Kind.COMMIT, num_accepted) if moved else 0.0)


KNOWN = ("plain", "early-stop", "oracle", "prophet")


def require_names(names: Sequence[str]) -> None:
    """UsageError for a name that is no policy's."""
    for name in names:
        if name not in KNOWN:
            check_name(name)


def policies(recording: Recording, names: Sequence[str]) -> dict[str, Callable[[], Router | None]]:
    """Makers of the policies called `names`: those of `runtime.router.choice`, plain, early-stop, oracle, prophet."""
    recurrent, known = recording.recurrent, dict[str, Callable[[], Router | None]]()

    def prices() -> PriceModel:
        return PriceModel(recording.prices)

    known["plain"] = lambda: None
    known["early-stop"] = lambda: StairCut(prices(), recurrent=recurrent, cutter=EarlyStop)
    known["prophet"] = lambda: Prophet(prices(), recurrent=recurrent)
    known["oracle"] = lambda: Oracle(prices(), true_chances(recording.texts), recurrent=recurrent)

    def maker(name: str) -> Callable[[], Router | None]:
        return known.get(name) or (lambda: make_router(name, prices(), recurrent=recurrent))

    return {name: maker(name) for name in names}


def replay(
    recording: Recording, names: Sequence[str], advance: Callable[[str], None] = lambda name: None
) -> dict[str, dict[str, Tally]]:
    """Per policy and workload what it came to. A policy keeps what it learns from text to text, as a server does."""
    found: dict[str, dict[str, Tally]] = {}
    for name, make in policies(recording, names).items():
        advance(name)
        played, tallies = Replay(recording, make()), found.setdefault(name, {})
        for text in recording.texts:
            tallies.setdefault(text.workload, Tally()).add(played.play(text))
    return found
