"""Plain bf16 decoding against Transformers, and copy-heavy lookup against plain: interleaved, medians, ratios.

Every side decodes the same dequantised weights on the same number of threads. Prints a table, then JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from answer import Answer, CommandError, answer, begun_again

STORY = "Once upon a time, in a village between two rivers, there lived a clockmaker who"


def main() -> int:
    """Returns the exit code: 1 if speculative ids differ from plain ones."""
    options = parse()
    if not options.gguf.is_file():
        print(f"error: {options.gguf}: no such file", file=sys.stderr)
        return 2
    runs: dict[str, list[float]] = {"plain": [], "transformers": [], "copy plain": [], "copy lookup": []}
    try:
        same, rounds = measure(options, runs)
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    result = {
        "machine": machine(),
        "threads": options.threads,
        "repeats": options.repeats,
        "tokens_per_second": runs,
        "plain_over_transformers": spread(runs["plain"], runs["transformers"]),
        "lookup_over_plain": spread(runs["copy lookup"], runs["copy plain"]),
        "copy_tokens_per_round": rounds,
        "identical": same,
    }
    report(result)
    print(json.dumps(result))
    return 0 if same else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True, help="a bf16 bundle")
    parser.add_argument("--gguf", type=Path, required=True, help="the checkpoint that the bundle was made from")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128, help="tokens decoded per run")
    return parser.parse_args()


def measure(options: argparse.Namespace, runs: dict[str, list[float]]) -> tuple[bool, float]:
    """Fill `runs` with tokens a second, the sides taking turns. Returns (texts identical, tokens a round)."""

    def ours(prompt: str, drafter: str, max_tokens: int) -> Answer:
        limits = {"max_tokens": max_tokens, "threads": options.threads}
        return answer(options.bundle, prompt, drafter=drafter, raw=True, **limits)

    copy, same, rounds = begun_again(), True, 0.0
    with peer(options) as decode:
        for turn in range(options.repeats + 1):
            plain = ours(STORY, "none", options.tokens)
            theirs = decode()
            copied = ours(copy, "none", 2 * options.tokens), ours(copy, "lookup", 2 * options.tokens)
            same, rounds = same and copied[0].ids == copied[1].ids, copied[1].tokens_per_round
            if turn == 0:  # warms caches and clocks
                continue
            rates = plain.tokens_per_second, theirs, copied[0].tokens_per_second, copied[1].tokens_per_second
            for side, rate in zip(runs, rates, strict=True):
                runs[side].append(round(rate, 2))
    return same, round(rounds, 2)


@contextmanager
def peer(options: argparse.Namespace) -> Iterator[Any]:
    """A process that holds the Transformers model; calling what is yielded decodes once and returns tokens a second."""
    script = Path(__file__).with_name("transformers_peer.py")
    words = [options.gguf, options.bundle / "tokenizer.json", options.threads, options.tokens]
    process = subprocess.Popen(
        [sys.executable, str(script), *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def decode() -> float:
        stdin.write(json.dumps(STORY) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise CommandError("the Transformers side ended early; its error stands above")
        return float(line)

    try:
        yield decode
    finally:
        stdin.close()
        process.wait()


def spread(upper: list[float], lower: list[float]) -> dict[str, float]:
    """Median, least and greatest ratio of runs that stood side by side."""
    ratios = [round(a / b, 3) for a, b in zip(upper, lower, strict=True)]
    return {"median": round(median(ratios), 3), "min": min(ratios), "max": max(ratios)}


def report(result: dict[str, Any]) -> None:
    print(f"{result['machine']}, {result['threads']} threads, {result['repeats']} interleaved runs\n")
    for side, rates in result["tokens_per_second"].items():
        print(f"{side:16}{median(rates):10.1f} tok/s   ({min(rates):.1f} to {max(rates):.1f})")
    for name in ("plain_over_transformers", "lookup_over_plain"):
        ratio = result[name]
        title = name.replace("_", " ")
        print(f"{title:26}{ratio['median']:6.2f} x   ({ratio['min']:.2f} to {ratio['max']:.2f})")
    print(f"copy: {result['copy_tokens_per_round']} tokens a round, identical: {result['identical']}\n")


def machine() -> str:
    """The processor's name and how many of its cores are ours."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.machine()
    return f"{name}, {os.cpu_count()} cores"


if __name__ == "__main__":
    sys.exit(main())
