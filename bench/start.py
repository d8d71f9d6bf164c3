"""What a start costs: time to the first token, memory beyond weights and KV, size of a fresh base install. Prints JSON.

Each is measured from outside, on processes started as a user starts them.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

from answer import CommandError, answer, program
from spread import Spread

ROOT = Path(__file__).resolve().parent.parent
PROMPT = "Tell me a story."
"""About 30 tokens once SmolLM2's chat template stands around it, and an answer that goes on while memory is read."""
TOKENS = 64
MB = 1e6


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=ROOT / ".demo" / "smollm2-bf16")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--install", action="store_true", help="also weigh a fresh install")
    options = parser.parse_args()
    try:
        found = start(options.bundle, options.repeats) | (install() if options.install else {})
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2))
    return 0


def start(bundle: Path, repeats: int) -> dict[str, Any]:
    """Seconds to the first token and to a listening server, and MB that both hold beyond weights and KV.

    Before the first run, one that is not counted brings the files into the page cache.
    """
    prompt_tokens = answer(bundle, PROMPT, drafter="lookup", max_tokens=1).stats["prompt_tokens"]
    answers = [_first_token(bundle) for _ in range(repeats)]
    servers = [_server(bundle) for _ in range(repeats)]
    return {
        "prompt_tokens": prompt_tokens,
        "first_token_s": Spread.of(seconds for seconds, _ in answers).record(),
        "listening_s": Spread.of(seconds for seconds, _ in servers).record(),
        "resident_mb": Spread.of(nbytes / MB for _, nbytes in answers).record(),
        "serving_mb": Spread.of(nbytes / MB for _, nbytes in servers).record(),
    }


def install() -> dict[str, Any]:
    """MB of the files that `pip install` of the wheel lays into an empty environment, by package."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        # From a copy: a build leaves folders in its source, and takes up what earlier ones left.
        left_out = shutil.ignore_patterns(".*", "build", "bench", "tests", "*.egg-info", "__pycache__")
        source = shutil.copytree(ROOT, place / "source", symlinks=True, ignore=left_out)
        _python("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, source)
        _python("venv", "--without-pip", place / "venv")
        (wheel,) = place.glob("*.whl")
        _python("pip", "--python", place / "venv", "install", "--quiet", wheel)
        (packages,) = place.glob("venv/lib/python*/site-packages")
        sizes = {path.name: _size(path) / MB for path in packages.iterdir()}
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:10]
    return {
        "install_mb": round(sum(sizes.values()), 1),
        "largest_mb": {name: round(sizes[name], 1) for name in largest},
    }


def _first_token(bundle: Path) -> tuple[float, int]:
    """Seconds from the process's start to the first byte of its answer, and bytes it holds then."""
    began = time.perf_counter()
    with _running(bundle, "--prompt", PROMPT, "--max-tokens", str(TOKENS)) as process:
        assert process.stdout
        first = process.stdout.read(1)
        seconds = time.perf_counter() - began
        if not first:
            raise CommandError(f"tandem-run said nothing: {_last_line(process)}")
        return seconds, _beyond(process.pid)


def _server(bundle: Path) -> tuple[float, int]:
    """Seconds until a server listens, and bytes it holds beyond weights and KV after its first answer."""
    began = time.perf_counter()
    with _running(bundle, "--port", "0") as process:
        assert process.stdout
        line = process.stdout.readline().decode()
        seconds = time.perf_counter() - began
        if not (address := re.search(r"http://\S+", line)):
            raise CommandError(f"tandem-run does not listen: {_last_line(process)}")
        body = json.dumps({"messages": [{"role": "user", "content": PROMPT}], "max_tokens": TOKENS}).encode()
        request = urllib.request.Request(
            f"{address[0]}/v1/chat/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()
        return seconds, _beyond(process.pid)


@contextmanager
def _running(bundle: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`tandem-run` while the block lasts."""
    words = [*program("tandem-run"), str(bundle), *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()


def _last_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr
    return process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]


def _beyond(pid: int) -> int:
    """Resident bytes of a process less the mapped weights and the KV pool, which is its largest piece of memory."""
    pieces: list[tuple[int, int]] = []
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *words = line.split()
        if not first.endswith(":"):
            weights = line.endswith("/weights.safetensors")
        elif first == "Size:":
            size = 1024 * int(words[0])
        elif first == "Rss:" and not weights:
            pieces.append((size, 1024 * int(words[0])))
    return sum(resident for _, resident in pieces) - max(pieces)[1]


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())


def _python(*words: str | Path) -> None:
    done = subprocess.run([sys.executable, "-m", *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise CommandError(f"python -m {words[0]}: {done.stderr.strip().rpartition(chr(10))[2]}")


if __name__ == "__main__":
    sys.exit(main())
