"""`make demo`: a checkpoint, its bundle for this CPU, and the same text decoded plainly and speculatively.

A second run reuses the checkpoint and the bundle. Exits 1 if the two texts differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

import bundles
from answer import Answer, CommandError, answer, begun_again
from smollm2 import FetchError, fetch

QUESTION = "What is the capital of France?"


def main() -> int:
    """Returns the exit code."""
    try:
        checkpoint = fetch()
        say(f"checkpoint  {shown(checkpoint)}")
        bundle = build(checkpoint)
        copied = "> bench/copied.txt, and its first lines again"
        same = [
            compare(bundle, f"> {QUESTION}", QUESTION, max_tokens=64),
            compare(bundle, copied, begun_again(), max_tokens=256, raw=True),
        ]
    except (FetchError, CommandError) as error:
        say(f"error: {error}")
        return 1
    return 0 if all(same) else 1


def build(checkpoint: Path) -> Path:
    """The bf16 bundle, made if it is missing or old."""
    bundle = bundles.place("bf16")
    say(f"bundle      {shown(bundle)}")
    say(
        "            compiled for this CPU"
        if bundles.build(checkpoint, "bf16")
        else "            built before and verified"
    )
    return bundle


def compare(bundle: Path, title: str, prompt: str, *, max_tokens: int, raw: bool = False) -> bool:
    """Print one prompt's text and its rates both ways; returns whether the ids are the same."""
    plain, lookup = (
        answer(bundle, prompt, drafter=drafter, max_tokens=max_tokens, raw=raw) for drafter in ("none", "lookup")
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
    return path.relative_to(bundles.ROOT) if path.is_relative_to(bundles.ROOT) else path


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
