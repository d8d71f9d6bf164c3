"""What an image needs, and the sums a GPU without room for it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.errors import BundleMismatch
from tandem.runtime.executor.cuda.image import CODE_BYTES, check_room, region_bytes
from tests.runtime.executor.cuda.sample import CUBINS, FIRST, GEOMETRY, LAYOUT, SCRATCH_BYTES, WEIGHT_BYTES, image

GIB = 1 << 30


def test_regions_are_as_large_as_they_must_be(tmp_path: Path) -> None:
    assert region_bytes(image(tmp_path), 9) == {
        "weights": WEIGHT_BYTES,
        "kv": 9 * GEOMETRY.page_bytes,
        "io": LAYOUT.nbytes,
        "scratch": SCRATCH_BYTES,
    }


def test_programs_that_are_shared_count_once(tmp_path: Path) -> None:
    made = image(tmp_path)
    assert len(made.programs) == 21
    assert [id(program) for program in made.distinct] == list(dict.fromkeys(id(entry[3]) for entry in made.programs))
    assert len(made.distinct) == 15
    assert made.cubin(FIRST) == CUBINS[FIRST]


def test_too_little_room_says_what_for_and_what_to_do() -> None:
    sizes = {"weights": 54 * GIB, "kv": 20 * GIB, "io": GIB // 4, "scratch": GIB // 4}
    enough = sum(sizes.values()) + CODE_BYTES
    check_room(sizes, enough, 80 * GIB)
    with pytest.raises(BundleMismatch) as caught:
        check_room(sizes, enough - GIB, 80 * GIB)
    said = str(caught.value)
    assert said.startswith("this GPU has 74.00 GiB of 80.00 GiB free and 75.00 GiB are needed: ")
    for part in ("weights 54.00 GiB", "kv 20.00 GiB", "io 0.25 GiB", "scratch 0.25 GiB", "kernels and graphs 0.50 GiB"):
        assert part in said
    assert "--max-model-len" in said and "nvidia-smi" in said
