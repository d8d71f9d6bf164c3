"""The ways to draw that a check of sampling goes through. Knows nothing of how they are checked."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem.runtime.request import Penalties, Sampling


@dataclass(frozen=True, slots=True)
class Manner:
    """A way to draw, and its name."""

    name: str
    sampling: Sampling
    penalties: Penalties = field(default_factory=Penalties)


MANNERS = (
    Manner("temperature 1", Sampling(1.0)),
    Manner("0.7, top_p 0.95, penalties", Sampling(0.7, top_p=0.95), Penalties(1.1, 0.4, 0.3)),
    Manner("top_k 20, top_p 0.9", Sampling(1.0, top_p=0.9, top_k=20)),
    Manner("1.3, min_p 0.05", Sampling(1.3, min_p=0.05)),
    Manner("0.9, bias, n-grams", Sampling(0.9), Penalties(no_repeat_ngram_size=3, logit_bias=((1, 2.5), (3, -1.5)))),
)
