"""Figures of answers as lines of text.

Knows nothing of where they are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from tandem.runtime.live import Totals
from tandem.runtime.request import LaneStats


def summary(*answers: LaneStats) -> str:
    """One line of rates over `answers`. First tokens come out of a prefill, so they count in no round."""
    stats = _sum(answers)
    rounds_tokens = sum(max(answer.completion_tokens - 1, 0) for answer in answers)
    rate = 1e3 * rounds_tokens / stats.decode_ms if stats.decode_ms else 0.0
    each = rounds_tokens / stats.rounds if stats.rounds else 0.0
    share = f" ({100 * stats.accepted / stats.drafted:.0f} %)" if stats.drafted else ""
    return (
        f"[{stats.prompt_tokens} + {stats.completion_tokens} tokens, prefill {stats.prefill_ms:.0f} ms, "
        f"{rate:.1f} tokens/s, {each:.2f} tokens a round, {stats.accepted} of {stats.drafted} drafts accepted{share}]"
    )


def rates(before: Totals, now: Totals) -> str:
    """What the engine did between two moments, in one line."""
    tokens, seconds = now.tokens - before.tokens, now.seconds - before.seconds
    if not tokens:
        return f"reading the prompt, {seconds:.1f} s"
    parts = [f"{tokens} tokens", f"{tokens / seconds:.1f} tokens/s"]
    if rounds := now.lane_rounds - before.lane_rounds:
        parts.append(f"{(now.round_tokens - before.round_tokens) / rounds:.2f} tokens a round")
    if drafted := now.drafted - before.drafted:
        parts.append(f"{100 * (now.accepted - before.accepted) / drafted:.0f} % of drafts accepted")
    return ", ".join(parts)


def _sum(answers: Sequence[LaneStats]) -> LaneStats:
    names = [field.name for field in fields(LaneStats)]
    return LaneStats(**{name: sum(getattr(stats, name) for stats in answers) for name in names})
