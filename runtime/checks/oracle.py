"""What a bundle's `oracle.json` says: the digests of the identity scenario when it was sealed.

Knows nothing of how they are taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tandem.artifacts.layout import ORACLE
from tandem.errors import BundleCorrupt

if TYPE_CHECKING:
    from tandem.artifacts.reader import Bundle

Digests = list[tuple[str, str]]
"""(what, digest) pairs in the scenario's order."""


def sealed(bundle: Bundle) -> dict[str, Digests]:
    """By scenario name; BundleCorrupt when the file holds anything else."""
    try:
        return msgspec.convert(bundle.json(ORACLE), dict[str, Digests])
    except msgspec.ValidationError as error:
        raise BundleCorrupt(f"{ORACLE}: {error}; compile the bundle again") from None


def differing(found: Digests, wanted: Digests) -> list[str]:
    """What of `wanted` was found otherwise or not at all, in order; what was not wanted differs too."""
    have, asked = dict(found), dict(wanted)
    return [what for what in (asked | have) if have.get(what) != asked.get(what)]
