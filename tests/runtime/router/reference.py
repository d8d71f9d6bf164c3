"""The router's definitions written down plainly, node by node: chances, the cut, and what became of nodes.

The router's own are made for speed and must agree with these to the bit, but for sums over nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.drafters.base import MODELS
from tandem.tree import DraftTree

LEAST, SUREST, TENTHS = 1e-9, 0.99, 10
Path = tuple[int, ...]
Factors = Mapping[str, Sequence[float]]
Said = dict[Path, tuple[float, str]]
"""Of each path that a family proposes, the largest score and who gave it."""


def tenth_of(score: float) -> int:
    return int(score * (TENTHS - 1e-6))


def said(trees: Sequence[DraftTree]) -> tuple[Said, Said]:
    """What copies say and what models say."""
    found: tuple[Said, Said] = {}, {}
    for tree in trees:
        family = found[any(source in MODELS for source in tree.sources)]
        for node in range(1, len(tree)):
            path, score = path_of(tree, node), tree.scores[node]
            score = min(score, 1.0) if score > LEAST else LEAST
            if path not in family or score > family[path][0]:
                family[path] = score, tree.sources[node]
    return found


def path_of(tree: DraftTree, node: int) -> Path:
    return tuple(tree.tokens[i] for i in tree.path(node)[1:])


def nodes(trees: Sequence[DraftTree]) -> list[Path]:
    """All that is proposed, as it is met."""
    return list(dict.fromkeys(path_of(tree, node) for tree in trees for node in range(1, len(tree))))


def own(order: Sequence[Path], family: Said, factors: Factors) -> dict[Path, float]:
    """Chances by what one family says: weighed scores, at most the parent's."""
    q: dict[Path, float] = {(): 1.0}
    for path in order:
        if path in family:
            score, source = family[path]
            weighed = score * factors[source][tenth_of(score)] if source in factors else score
            q[path] = min(weighed, q[path[:-1]])
    return q


def chances(trees: Sequence[DraftTree], factors: Factors) -> dict[Path, float]:
    """Chance of each proposed path, and of the anchor's."""
    order, (copies, models) = nodes(trees), said(trees)
    a, b = own(order, copies, factors), own(order, models, factors)
    if not (copies and models):
        return a if copies else b
    q, mass, left = {(): 1.0}, dict[Path, list[float]](), dict[Path, float]()
    shared = {path for path in order if path in a and path in b} | {()}
    for path in shared:
        mass[path], left[path] = [0.0, 0.0], 1.0
    for path in order:
        if path not in shared and (above := path[:-1]) in shared:
            mass[above][path in b] += (b[path] / b[above]) if path in b else a[path] / a[above]
    ratio = {(): 1.0}
    for path in order:
        above, mine = path[:-1], b[path] if path in b and path not in a else a[path]
        if above not in shared:
            ratio[path] = ratio[above]
            q[path] = min(mine * ratio[above], q[above])
            continue
        if path in shared:
            share = (1.0 - (1.0 - a[path]) * (1.0 - b[path])) / q[above]
        else:
            family = path in b
            share = mine / (b if family else a)[above]
            rival = min(mass[above][not family], SUREST)
            if rival:
                share *= (1.0 - rival) / (1.0 - min(mass[above][family], SUREST) * rival)
        share = max(LEAST, min(share, left[above]))
        left[above] -= share
        q[path] = q[above] * share
        ratio[path] = q[path] / mine
    return q


Node = tuple[int, Path]
"""A lane and a path in it."""


def best_cut(
    lanes: Sequence[dict[Path, float]], prices: PriceModel, recurrent: bool, max_rows: int
) -> tuple[float, set[Node]]:
    """Tokens a millisecond of the best count, of everything or of each lane's best line, and its nodes."""
    everything = [(q, (i, path)) for i, lane in enumerate(lanes) for path, q in lane.items() if path]
    lines = [(lane[path], (i, path)) for i, lane in enumerate(lanes) for path in best_line(lane)]
    found = best_count(everything, len(lanes), prices, recurrent, max_rows)
    straight = best_count(lines, len(lanes), prices, recurrent, max_rows)
    return straight if straight[0] > found[0] else found


def best_line(lane: dict[Path, float]) -> list[Path]:
    """The path of most expected tokens, node by node."""
    expected = {(): 0.0}
    for path, q in lane.items():
        if path:
            expected[path] = expected[path[:-1]] + q
    best = max(expected, key=expected.__getitem__)
    return [best[:depth] for depth in range(1, len(best) + 1)]


def best_count(
    ranked: list[tuple[float, Node]], lanes: int, prices: PriceModel, recurrent: bool, max_rows: int
) -> tuple[float, set[Node]]:
    ranked = sorted(ranked, key=lambda entry: -entry[0])[: max(0, max_rows - lanes)]
    kept, ends, gained = set[Node](), {(i, ()) for i in range(lanes)}, float(lanes)
    best, found, straight = lanes / prices.ms(0, Kind.EXTEND, lanes), set[Node](), True
    for q, (lane, path) in ranked:
        gained += q
        kept.add((lane, path))
        straight = straight and (lane, path[:-1]) in ends
        if straight:
            ends = ends - {(lane, path[:-1])} | {(lane, path)}
        ms = prices.ms(0, Kind.VERIFY_CHAIN if straight else Kind.VERIFY_TREE, lanes + len(kept))
        if recurrent or not straight:
            ms += prices.ms(0, Kind.COMMIT, int(gained))
        if gained / ms > best:
            best, found = gained / ms, set(kept)
    return best, found


def fates(
    trees: Sequence[DraftTree], verified: Collection[Path], committed: Sequence[int]
) -> dict[str, tuple[list[float], list[float]]]:
    """Accepted and expected nodes by source and tenth, of all whose parent was verified and whose end is known."""
    counts: dict[str, tuple[list[float], list[float]]] = {}
    text = tuple(committed)
    for family in said(trees):
        for path in nodes(trees):
            if path not in family or not (len(path) == 1 or path[:-1] in verified):
                continue
            if path[: len(text)] == text and len(path) > len(text):
                continue  # the text ends on the way to it
            score, source = family[path]
            accepted, expected = counts.setdefault(source, ([0.0] * TENTHS, [0.0] * TENTHS))
            accepted[tenth_of(score)] += text[: len(path)] == path
            expected[tenth_of(score)] += score
    return counts
