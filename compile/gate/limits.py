"""What a low-bit profile may cost, and what it did cost as a record: rounded figures, limits, whether all hold.

Knows nothing of how the figures were found.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tandem.artifacts.quality import DIGITS, Agreement, FreeGeneration, Quality, TextLoss
from tandem.errors import QualityError

REFERENCE: Final = "fp32"

LOSS_RISE = 0.05
"""Nats a token by which the worse of the texts may rise: a twentieth more perplexity."""
CONFIDENT_GAP = 1.0
"""Lead of the first choice over the second, in logits, from which the reference counts as confident."""
CONFIDENT_AGREEMENT = 0.99
"""Share of the confident positions with the same choice. Rounding moves a lead by a tenth to a third of a logit, so it
turns close calls, which is no loss of quality and is not limited; a lead of a whole logit it turns about once in a
thousand. At one in a hundred a matrix is broken, and greedy answers part within a few sentences."""
UNIQUE_4GRAM_DROP = 0.15
"""How far the share of new 4-grams in free answers may fall below the reference's. Greedy answers of small models fall
into loops by chance, some more and some less after any change of bits; answers that loop from the start cost a half."""


def record(figures: dict[str, Any]) -> Quality:
    """The record of what the gate's process found. QualityError for a loss that is no number: nothing can be said."""
    for text in figures["texts"]:
        if None in (text["loss"], text["reference_loss"]):  # how JSON spells what is no number
            raise QualityError(f"loss on {text['name']} is no number: a defect of the kernels, please report it")
    quality = Quality(
        reference=REFERENCE,
        texts=tuple(TextLoss(**_rounded(text)) for text in figures["texts"]),
        agreement=Agreement(**figures["agreement"]),
        generation=FreeGeneration(**_rounded(figures["generation"])),
        limits={
            "loss_rise": LOSS_RISE,
            "confident_gap": CONFIDENT_GAP,
            "confident_agreement": CONFIDENT_AGREEMENT,
            "unique_4gram_drop": UNIQUE_4GRAM_DROP,
        },
        held=True,
    )
    return msgspec.structs.replace(quality, held=not faults(quality))


def require(quality: Quality, profile: str) -> None:
    """QualityError that names what does not hold."""
    if not quality.held:
        raise QualityError(
            f"{profile} costs too much quality: {'; '.join(faults(quality))}; take a wider profile, "
            "or seal it all the same with --accept-quality"
        )


def faults(quality: Quality) -> list[str]:
    """The figures that do not hold, each with what was found and its limit."""
    worse = max(quality.texts, key=lambda text: text.rise)
    share, drop = quality.agreement.confident_share, quality.generation.unique_4gram_drop
    found = []
    if worse.rise > LOSS_RISE:
        found.append(f"loss on {worse.name} rises by {worse.rise:.4f} nats, at most {LOSS_RISE} wanted")
    if share < CONFIDENT_AGREEMENT:
        found.append(f"{share:.4f} of the confident choices are the same, at least {CONFIDENT_AGREEMENT} wanted")
    if drop > UNIQUE_4GRAM_DROP:
        found.append(
            f"the share of new 4-grams in free answers falls by {drop:.4f}, at most {UNIQUE_4GRAM_DROP} wanted"
        )
    return found


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in figures.items()}
