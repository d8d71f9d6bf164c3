"""StairCut: each round's drafts cut to what pays at the bundle's prices, never slower than plain.

Every round with candidates calls `choose`, and `settle` with what it committed. A lane is `open`ed when it is
admitted and `close`d when it ends. Sees trees and prices, never a drafter's inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.prices import PriceModel, context_key
from tandem.runtime.meter import Plain
from tandem.runtime.router.account import Account, Credits
from tandem.runtime.router.blend import Blend
from tandem.runtime.router.calibration import Calibration, Evidence, fates
from tandem.runtime.router.costs import DraftCosts, Prior
from tandem.runtime.router.cut import Cut, Cutter
from tandem.runtime.router.forecast import Forecast
from tandem.runtime.router.ledger import Arm, Ledger
from tandem.runtime.router.played import Played
from tandem.tree import DraftTree

MARGIN = 1.03
HOPE = 1.5  # how many times as fast as plain a model's rounds are taken for, where no prior says: it has to be tried
MODEL_ROWS = 16  # of a lane's tree, for what asking the model would cost


@dataclass(slots=True)
class LaneEvidence:
    """What one lane's text has taught, and what copies have earned on it, by context class.

    `asking` is the account of the round at hand, if copies are looked for in it.
    """

    calibration: Evidence
    forecast: Forecast = field(default_factory=Forecast)
    accounts: dict[int, Account] = field(default_factory=dict)
    asking: Account | None = None

    def rests(self, context: int, credits: Credits) -> int:
        """For how many rounds copies are not looked for; if none, the round that begins looks."""
        if (account := self.accounts.get(key := context_key(context))) is None:
            account = self.accounts[key] = credits.open(key)
        rests = account.rests()
        self.asking = None if rests else account
        return rests

    def book(self, gain: float, looking: float) -> None:
        """What looking brought in the round at hand and took of it, in plain steps."""
        if self.asking is not None:
            self.asking.settle(gain, looking)
            self.asking = None


@dataclass(slots=True)
class Seen:
    """What copies proposed when it was asked whether to ask a model, and what of it would be verified without."""

    candidates: Sequence[Sequence[DraftTree]]
    counts: Sequence[int]
    blends: Sequence[Blend]
    cut: Cut


class StairCut:
    """Cuts drafts at the bundle's prices. What it learns of costs outlives requests; evidence is a lane's own.

    With `recurrent` layers a line is committed as a tree is: a state has to be moved on, however much was right.
    `declined` hears why a round with candidates is to be plain. `draft_prior` says what a draft costs before one was
    measured. Without `learn_cost` costs stay those of prices and prior, and nothing is decided by wall time. A draft
    must promise `margin` times what the plain step brings.
    """

    def __init__(
        self,
        prices: PriceModel,
        *,
        recurrent: bool = False,
        declined: Callable[[Plain], None] = lambda reason: None,
        draft_prior: Prior = lambda source, context_class, lanes: 0.0,
        learn_cost: bool = True,
        cutter: type[Cutter] = Cutter,
        margin: float = MARGIN,
    ) -> None:
        self._prices, self._cutter, self._declined = prices, cutter(prices, recurrent=recurrent), declined
        self._margin = margin
        self._learn_cost, self._draft_costs = learn_cost, DraftCosts(draft_prior)
        self._evidence: dict[int, LaneEvidence] = {}
        self._calibration, self._credits = Calibration(), Credits()
        self._ledgers: dict[tuple[int, int], Ledger] = {}
        self._seen: Seen | None = None
        self._round: Played | None = None

    def open(self, lane: int) -> None:
        """A lane starts from what closed lanes taught; lanes side by side do not touch each other's evidence."""
        self._evidence[lane] = LaneEvidence(Evidence(self._calibration.factors()))

    def close(self, lane: int) -> None:
        """Drops a lane's evidence; an unknown lane is nothing to close."""
        evidence = self._evidence.pop(lane, None)
        if evidence is not None:
            self._calibration.learn(evidence.calibration.counts)
            self._credits.close(evidence.accounts)

    def reset(self) -> None:
        """Forgets all text evidence and keeps costs."""
        self._calibration, self._credits = Calibration(), Credits()
        for lane in self._evidence:
            self.open(lane)

    def rests(self, lane: int, context: int) -> int:
        """For how many rounds from now on copies are not to be looked for in a lane: that took more than it brought."""
        if not self._learn_cost:
            return 0
        return self._lane(lane).rests(context, self._credits)

    def wants_model(
        self,
        candidates: Sequence[Sequence[DraftTree]],
        contexts: Sequence[int],
        max_rows: int,
        lanes: Sequence[int],
        source: str,
    ) -> bool:
        """Whether a drafter of `source`, which costs a pass of its own, is worth asking in this round.

        `candidates` are those that cost nothing. Not asked is a model whose rounds have lost against plain ones, but
        for probes; and one that promises less than what the others bring already, if that pays.
        """
        context, num_lanes = max(contexts), len(lanes)
        ledger = self._ledger(context, num_lanes)
        if self._learn_cost and not ledger.allows(Arm.MODELLED):
            return False
        if not any(candidates):
            return True
        blends = self._blends(candidates, lanes)
        cut = self._cutter.best(blends, context, max_rows, ledger.host)
        self._seen = Seen(candidates[:], [len(trees) for trees in candidates], blends, cut)
        if not cut.count:
            return True
        rows = min(num_lanes * MODEL_ROWS, max_rows, MAX_TREE_ROWS)
        ms = sum(self._prices.ms(context, kind, rows) for kind in (Kind.VERIFY_TREE, Kind.COMMIT))
        ms += ledger.host.drafted + self._draft_costs.ms(source, context_key(context), num_lanes)
        return cut.value * ms <= num_lanes + sum(self._lane(lane).forecast.accepted for lane in lanes)

    def turn_pays(self, context: int, backlog: int, num_tokens: float, sync_ms: float) -> bool:
        """Whether a request of `num_tokens` expected tokens should draft with the model at all.

        It has to read `backlog` rows of the prompt first, at `sync_ms` each, and saves what rounds that ask it have
        been cheaper a token than plain ones in this context class, with as many lanes as are open. What is held against
        it ages with each turn that goes without.
        """
        if not self._learn_cost:
            return True
        ledger = self._ledger(context, max(1, len(self._evidence)))
        pays = num_tokens * ledger.saving() > backlog * sync_ms
        if not pays:
            ledger.age(max(1, int(num_tokens)))
        return pays

    def choose(
        self,
        candidates: Sequence[Sequence[DraftTree]],
        contexts: Sequence[int],
        max_rows: int,
        lanes: Sequence[int] | None = None,
        draft_ms: Mapping[str, float] | None = None,
    ) -> list[DraftTree]:
        """One tree per lane, at most `max_rows` (>= lanes) nodes together; [] is the plain step.

        `contexts` are committed lengths in tokens. `lanes` are the lanes' numbers, 0, 1, .. if left out. `draft_ms`
        holds the wall time of each source that had to be asked in this round. A lane without candidates gets a root
        over NO_ANCHOR.
        """
        lanes, context = lanes or range(len(candidates)), max(contexts)
        num_lanes, (blends, seen) = len(lanes), self._blended(candidates, lanes)
        if self._learn_cost:
            for source, ms in (draft_ms or {}).items():
                self._draft_costs.observe(source, context_key(context), num_lanes, ms)
        arm = Arm.MODELLED if draft_ms else Arm.COPIED
        ledger = self._ledger(context, num_lanes)
        cut = seen or self._cutter.best(blends, context, max_rows, ledger.host)
        gain = cut.value / self._cutter.plain(num_lanes, context, ledger.host)
        promised = gain > self._margin
        drafted = promised and (not self._learn_cost or ledger.allows(arm, gain))
        if not drafted:
            self._declined(Plain.MEASURED if promised else Plain.PRICE)
        # What the draft took has no price: the wall time of such a round tells of none.
        priced = cut.expected / gain if drafted and not draft_ms else None
        kept: list[list[int]] = cut.kept() if drafted else [[] for _ in lanes]
        arm = arm if drafted or draft_ms else Arm.PLAIN
        self._round = Played(lanes, blends, kept, context, arm, priced, drafted)
        return cut.trees(kept) if drafted else []

    def settle(
        self, committed: Sequence[Sequence[int]], ms: float | None = None, asked_ms: float = 0.0, host_ms: float = 0.0
    ) -> None:
        """Learns from what each lane committed (accepted tokens and the target's own) in the round last chosen.

        `ms` is the wall time of the round from draft to commit, None if something else ran in between: of it `asked_ms`
        went into finding copies and choosing, and `host_ms` into the host's part behind that, outside passes.
        """
        last, self._round = self._round, None
        assert last is not None, "settle follows choose"
        for lane, blend, kept, tokens in zip(last.lanes, last.blends, last.kept, committed, strict=True):
            if lane in self._evidence and len(blend) > 1:
                evidence = self._evidence[lane]
                evidence.calibration.learn(fates(blend, set(kept), tokens))
                evidence.forecast.learn(blend, tokens)
        num_tokens = sum(map(len, committed))
        if ms is not None and num_tokens and self._learn_cost:
            ledger = self._ledger(last.context, len(committed))
            if asking := self._asking(last.lanes):
                step = ledger.plain.per_token
                share = ledger.asked.sound(asked_ms) / step / len(asking)
                for i, gain in last.copied_gains(committed, list(asking), ms / step, share).items():
                    asking[i].book(gain, share)
            ledger.settle(last.arm, ms - asked_ms, num_tokens, last.priced)
            ledger.host_took(last.drafted, host_ms)

    def passed(self, lanes: Sequence[int], contexts: Sequence[int], ms: float, asked_ms: float, host_ms: float) -> None:
        """A round that had no candidates; costs as those of `settle`."""
        if self._learn_cost:
            ledger = self._ledger(max(contexts), len(lanes))
            ledger.settle(Arm.PLAIN, ms - asked_ms, len(lanes))
            ledger.host_took(False, host_ms)
            if asking := self._asking(lanes):
                share = ledger.asked.sound(asked_ms) / ledger.plain.per_token / len(asking)
                for evidence in asking.values():
                    evidence.book(-share, share)

    def _asking(self, lanes: Sequence[int]) -> dict[int, LaneEvidence]:
        """Those of the lanes that copies were looked for in, by their place in the round."""
        known = ((i, self._evidence.get(lane)) for i, lane in enumerate(lanes))
        return {i: evidence for i, evidence in known if evidence and evidence.asking}

    def _blended(
        self, candidates: Sequence[Sequence[DraftTree]], lanes: Sequence[int]
    ) -> tuple[Sequence[Blend], Cut | None]:
        """As `_blends`, and their best cut if it is known: of what was seen in this round only what is new is added."""
        seen, self._seen = self._seen, None
        if seen is None or len(seen.counts) != len(lanes) or not all(map(is_, seen.candidates, candidates)):
            return self._blends(candidates, lanes), None
        known: Cut | None = seen.cut
        blends: list[Blend] = []
        for lane, trees, count, blend in zip(lanes, candidates, seen.counts, seen.blends, strict=True):
            if len(trees) > count:
                factors, known = self._lane(lane).calibration.factors, None
                if count:
                    blend.extend(trees[count:], factors)
                else:
                    blend = Blend(trees, factors)
            blends.append(blend)
        return blends, known

    def _blends(self, candidates: Sequence[Sequence[DraftTree]], lanes: Sequence[int]) -> list[Blend]:
        return [
            Blend(trees, self._lane(lane).calibration.factors) for lane, trees in zip(lanes, candidates, strict=True)
        ]

    def _lane(self, lane: int) -> LaneEvidence:
        if lane not in self._evidence:
            self.open(lane)
        return self._evidence[lane]

    def _ledger(self, context: int, num_lanes: int) -> Ledger:
        key = (context_key(context), num_lanes)
        if key not in self._ledgers:
            plain = self._prices.ms(context, Kind.EXTEND, num_lanes) / num_lanes
            spec = None
            if num_lanes == 1:  # the table's own wall times are those of one lane
                plain = self._prices.prior(context, "plain") or plain
                spec = self._prices.prior(context, "spec")
            self._ledgers[key] = Ledger(plain, spec or plain, spec or plain / HOPE)
        return self._ledgers[key]
