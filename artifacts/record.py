"""What every record of a manifest is made of: strict structs and bounded fields.

Knows nothing of what the records say.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Version = Annotated[str, Meta(pattern=r"\A[0-9]{1,3}\.[0-9]{1,3}\Z")]
"""Two numbers, such as 13.0."""
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Capacity = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Bytes = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Number = int | float
"""Kept as it was written: 5 and 5.0 are two spellings."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every field is required, so that none can be dropped from a manifest unseen, but for what is of bundles with a
    drafter alone: where that is none it is not spelt."""
