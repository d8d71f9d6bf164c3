"""Compares the log-likelihoods that lm-eval wrote of two runs over one task. Arguments: FOLDER FOLDER.

Prints one line; exit code 1 where an answer's differ by more than MOST, or the runs are not of the same answers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MOST = 0.25
"""Nats of a whole answer: activations are bf16 on one side and fp32 on the other."""


def likelihoods(folder: Path) -> dict[tuple[int, int], float]:
    """By document and answer."""
    (path,) = folder.rglob("samples_*.jsonl")
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        (sample["doc_id"], place): float(likelihood)
        for sample in samples
        for place, (likelihood, _) in enumerate(sample["filtered_resps"])
    }


def accuracy(folder: Path) -> float:
    (path,) = folder.rglob("results_*.json")
    return json.loads(path.read_text())["results"]["facts"]["acc,none"]


def main(folders: list[Path]) -> int:
    ours, theirs = map(likelihoods, folders)
    if ours.keys() != theirs.keys():
        print(f"{len(ours)} and {len(theirs)} answers: not the same task")
        return 1
    most = max(abs(ours[key] - theirs[key]) for key in ours)
    accuracies = " and ".join(f"{accuracy(folder):.3f}" for folder in folders)
    print(f"{len(ours)} log-likelihoods, {most:.3f} nats apart at most; accuracy {accuracies} (served, Transformers)")
    return int(most > MOST)


if __name__ == "__main__":
    sys.exit(main([Path(word) for word in sys.argv[1:]]))
