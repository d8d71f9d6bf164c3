"""`make demo`: a checkpoint, its bundle for this CPU, and the same text decoded plainly and speculatively.

A second run reuses the checkpoint and the bundle. Exits 1 if the two texts differ.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from answer import Answer, CommandError, answer, begun_again, command
from smollm2 import SHA256, FetchError, fetch

ROOT = Path(__file__).resolve().parent.parent
BUNDLE = ROOT / ".demo" / "smollm2-bf16"
QUESTION = "What is the capital of France?"
# What a bundle is made from besides the checkpoint.
SOURCES = ("tandem", "artifacts", "compile", "kernels")


def main() -> int:
    """Returns the exit code."""
    try:
        checkpoint = fetch()
        say(f"checkpoint  {shown(checkpoint)}")
        build(checkpoint)
        same = [
            compare(f"> {QUESTION}", QUESTION, max_tokens=64),
            compare("> bench/copied.txt, and its first lines again", begun_again(), max_tokens=256, raw=True),
        ]
    except (FetchError, CommandError) as error:
        say(f"error: {error}")
        return 1
    return 0 if all(same) else 1


def build(checkpoint: Path) -> None:
    """Compile the bundle unless a sound one made from these very sources lies there."""
    stamp = BUNDLE.with_suffix(".sources")
    sources = fingerprint()
    if BUNDLE.is_dir() and stamp.is_file() and stamp.read_text() == sources and sound():
        say(f"bundle      {shown(BUNDLE)}, built before and verified")
        return
    BUNDLE.parent.mkdir(exist_ok=True)
    say(f"bundle      {shown(BUNDLE)}, compiling for this CPU")
    command("tandem-compile", checkpoint, "--profile", "bf16", "-o", BUNDLE, "--replace", quiet=False)
    stamp.write_text(sources)


def sound() -> bool:
    """Whether every file of the bundle has its digest."""
    try:
        command("tandem-bundle", "verify", BUNDLE)
    except CommandError:
        return False
    return True


def fingerprint() -> str:
    """sha256 over the checkpoint's digest and the sources that read, lower, prove and write."""
    total = hashlib.sha256(SHA256.encode())
    for room in SOURCES:
        for path in sorted((ROOT / room).rglob("*.*")):
            if path.suffix in {".py", ".cpp", ".h"}:
                total.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return total.hexdigest()


def compare(title: str, prompt: str, *, max_tokens: int, raw: bool = False) -> bool:
    """Print one prompt's text and its rates both ways; returns whether the ids are the same."""
    plain, lookup = (
        answer(BUNDLE, prompt, drafter=drafter, max_tokens=max_tokens, raw=raw) for drafter in ("none", "lookup")
    )
    same = plain.ids == lookup.ids
    print(f"\n{title}\n{excerpt(lookup.text)}\n")
    print(f"{'':18}{'plain':>10}{'lookup':>10}")
    print(row("tokens a second", [plain, lookup], "tokens_per_second", 1))
    print(row("tokens a round", [plain, lookup], "tokens_per_round", 2))
    print(f"identical text    {'yes' if same else 'NO':>20}   ({len(plain.ids)} tokens)", flush=True)
    return same


def row(title: str, answers: list[Answer], name: str, digits: int) -> str:
    return f"{title:18}" + "".join(f"{getattr(found, name):10.{digits}f}" for found in answers)


def excerpt(text: str, max_lines: int = 12) -> str:
    lines = text.strip("\n").splitlines()
    return "\n".join(lines[:max_lines] + ([f"... ({len(lines) - max_lines} more lines)"] * (len(lines) > max_lines)))


def shown(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
