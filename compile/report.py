"""The build report for people: a Markdown page and the staircase of prices as a plain SVG.

Knows prices and plans, no models.
"""

from __future__ import annotations

from typing import Any

from tandem.artifacts.quality import Quality
from tandem.keys import Kind

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 360, 56, 40
COLOURS = {Kind.VERIFY_CHAIN.value: "#1f6feb", Kind.VERIFY_TREE.value: "#d1570a"}


def staircase(prices: dict[str, Any]) -> str:
    """SVG of milliseconds over rows, a line per verify kind and context class (the longer, the fainter)."""
    classes = [name for name in prices if name.isdigit()]
    top = max(ms for c in classes for kind in COLOURS for ms in prices[c][kind].values()) * 1.05
    most = max(int(r) for c in classes for kind in COLOURS for r in prices[c][kind])

    def x(rows: float) -> float:
        return LEFT + (WIDTH - LEFT - 150) * rows / most

    def y(ms: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 24) * ms / top

    marks = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="11"><rect width="100%" height="100%" fill="white"/>',
        f'<path d="M{LEFT} 24V{HEIGHT - BOTTOM}H{WIDTH - 140}" fill="none" stroke="#444"/>',
        f'<text x="{LEFT}" y="16">milliseconds a pass</text>',
        f'<text x="{WIDTH - 250}" y="{HEIGHT - 8}">rows in the pass</text>',
    ]
    for rows in (1, 8, 16, 24, 32):
        marks.append(f'<text x="{x(rows):.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{rows}</text>')
    for part in (0.25, 0.5, 0.75, 1.0):
        at = y(top / 1.05 * part)
        marks.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_two_digits(top / 1.05 * part)}</text>')
        marks.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - 140}" stroke="#ddd"/>')
    for i, name in enumerate(classes):
        for j, (kind, colour) in enumerate(COLOURS.items()):
            curve = sorted((int(r), ms) for r, ms in prices[name][kind].items())
            points = " ".join(f"{x(r):.1f},{y(ms):.1f}" for r, ms in curve)
            faint = 1 - 0.7 * i / max(1, len(classes))
            marks.append(
                f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-opacity="{faint:.2f}" '
                'stroke-width="1.5"/>'
            )
            label = f"{kind.removeprefix('verify-')} at {name}"
            marks.append(
                f'<text x="{WIDTH - 130}" y="{32 + 14 * (2 * i + j)}" fill="{colour}" fill-opacity="{faint:.2f}">'
                f"{label}</text>"
            )
    return "\n".join([*marks, "</svg>", ""])


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"


def page(summary: dict[str, Any], prices: dict[str, Any], proof: dict[str, Any], quality: Quality | None) -> str:
    """The report as Markdown: what was built, what its bits cost, what was proved, what passes cost."""
    facts = "\n".join(f"| {name} | {value} |" for name, value in summary.items())
    sections = [
        f"# {summary['name']}, {summary['profile']} for {summary['device']}\n\n| | |\n|---|---|\n{facts}\n",
        *([_quality(quality)] if quality else []),
        f"## Proof\n\n{proof['cases']} comparisons with one-token steps, {proof['differing']} differing bits.\n",
        f"## Prices\n\n{prices['measured']}\n\n![staircase](staircase.svg)\n",
    ]
    for name in (n for n in prices if n.isdigit()):
        kinds = [kind for kind in Kind if kind in prices[name]]
        counts = sorted({int(r) for kind in kinds for r in prices[name][kind.value]})
        rows = [f"Milliseconds a pass, class {name}:\n", f"| rows | {' | '.join(map(str, counts))} |"]
        rows.append("|---" * (len(counts) + 1) + "|")
        for kind in kinds:
            curve = prices[name][kind.value]
            cells = [f"{curve[str(r)]:.2f}" if str(r) in curve else "" for r in counts]
            rows.append(f"| {kind.value} | {' | '.join(cells)} |")
        sections.append("\n".join(rows) + "\n")
    return "\n".join(sections)


def _quality(quality: Quality) -> str:
    reference, held = quality.reference, "All limits hold." if quality.held else "NOT within its limits."
    agreement, answers = quality.agreement, quality.generation
    rows = [(f"loss on {t.name}, {t.tokens} tokens", f"{t.loss:.4f}", f"{t.reference_loss:.4f}") for t in quality.texts]
    rows += [
        ("same choice, all positions", f"{agreement.equal} of {agreement.positions}", ""),
        ("same choice, confident positions", f"{agreement.confident_equal} of {agreement.confident}", ""),
        (f"tokens of {answers.prompts} free answers", f"{answers.tokens}", f"{answers.reference_tokens}"),
        ("answers that end by themselves", f"{answers.stops}", f"{answers.reference_stops}"),
        ("new 4-grams in them", f"{answers.unique_4grams:.2%}", f"{answers.reference_unique_4grams:.2%}"),
    ]
    limits = ", ".join(f"{name} {value}" for name, value in quality.limits.items())
    table = "\n".join(
        f"| {' | '.join(row)} |" for row in [("", "this profile", reference), ("---", "---", "---"), *rows]
    )
    return f"## Quality\n\n{held} Limits: {limits}.\n\n{table}\n"
