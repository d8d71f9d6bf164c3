"""`make demo` and `make demo-hybrid`: a checkpoint, its bundle for this CPU, and the same text decoded plainly and
speculatively.

A second run reuses the checkpoint and the bundle. Exits 1 if two texts differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

import bundles
from answer import Answer, CommandError, answer, begun_again
from smollm2 import FetchError, fetch

INTERRUPTED = 130
"""As shells expect it."""
QUESTION = "What is the capital of France?"
CLASS = '''class Stack:
    """A list whose last item is the first to leave."""

    def __init__(self):
        self.items = []

    def push(self, item):
'''


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked: a chat turn, or with `raw` a text to go on with."""

    title: str
    prompt: str
    max_tokens: int
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Demo:
    """`model` names the bundles; `checkpoint` finds the checkpoint or fetches it."""

    model: str
    checkpoint: Callable[[], Path]
    asks: tuple[Ask, ...]


COPY = Ask("> bench/copied.txt, and its first lines again", begun_again(), 256, raw=True)
DEMOS = {
    "smollm2": Demo("smollm2", fetch, (Ask(f"> {QUESTION}", QUESTION, 64), COPY)),
    "hybrid": Demo("demo-hybrid", lambda: bundles.HYBRID, (Ask(f"{CLASS}- - - - - - - -", CLASS, 200, raw=True), COPY)),
}


def main(name: str = "smollm2") -> int:
    """Returns the exit code."""
    if name not in DEMOS:
        say(f"error: there is no demo {name}; there are {', '.join(DEMOS)}")
        return 2
    demo = DEMOS[name]
    try:
        checkpoint = demo.checkpoint()
        say(f"checkpoint  {shown(checkpoint)}")
        bundle = build(checkpoint, demo.model)
        same = [compare(bundle, ask) for ask in demo.asks]
    except (FetchError, CommandError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("\nerror: interrupted")
        return INTERRUPTED
    return 0 if all(same) else 1


def build(checkpoint: Path, model: str) -> Path:
    """The bf16 bundle, made if it is missing or old."""
    bundle = bundles.place("bf16", model)
    say(f"bundle      {shown(bundle)}")
    made = bundles.build(checkpoint, "bf16", model)
    say("            compiled for this CPU" if made else "            built before and verified")
    return bundle


def compare(bundle: Path, ask: Ask) -> bool:
    """Print one prompt's text and its rates both ways; returns whether the ids are the same."""
    plain, lookup = (
        answer(bundle, ask.prompt, drafter=drafter, max_tokens=ask.max_tokens, raw=ask.raw)
        for drafter in ("none", "lookup")
    )
    same = plain.ids == lookup.ids
    print(f"\n{ask.title}\n{excerpt(lookup.text)}\n")
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
    sys.exit(main(*sys.argv[1:2]))
