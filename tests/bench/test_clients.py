"""The scripts that run clients: each is sound and listed, and what they compare and make is right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from sides.process import BENCH
from tests.service import TEMPLATE, byte_tokenizer

CLIENTS = BENCH / "clients"
SCRIPTS = sorted(path.name for path in CLIENTS.glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_sound(script: str) -> None:
    done = subprocess.run(["bash", "-n", str(CLIENTS / script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_client_is_run_and_described() -> None:
    clients = set(SCRIPTS) - {"run.sh", "environment.sh"}
    listed = re.search(r"set -- (.*)$", (CLIENTS / "run.sh").read_text(), re.MULTILINE)
    assert listed is not None and {f"{name}.sh" for name in listed[1].split()} == clients
    assert set(re.findall(r"^\| `(\w[\w.-]*\.sh)`", (CLIENTS / "README.md").read_text(), re.MULTILINE)) == clients


def test_a_bundles_tokenizer_is_a_folder_of_transformers(tmp_path: Path) -> None:
    bundle, folder = tmp_path / "bundle", tmp_path / "made" / "tokenizer"
    bundle.mkdir()
    facts = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE, "stop_ids": [257]}
    (bundle / "manifest.json").write_text(json.dumps({"tokenizer": facts}))
    byte_tokenizer().save(str(bundle / "tokenizer.json"))
    subprocess.run([sys.executable, str(CLIENTS / "tokenizer.py"), str(bundle), str(folder)], check=True)
    read = AutoTokenizer.from_pretrained(folder)
    assert read("héy<|im_end|>")["input_ids"] == [*"héy".encode(), 257] and read.eos_token == "<|im_end|>"
    talk = [{"role": "user", "content": "hi"}]
    assert read.apply_chat_template(talk, tokenize=False) == "<|im_start|>user\nhi<|im_end|>\n"


def compared(folder: Path, *runs: list[list[float]]) -> tuple[int, str]:
    """Exit code and words of the comparison of two runs: documents with a log-likelihood for each answer."""
    for number, documents in enumerate(runs):
        place = folder / str(number) / "model"
        place.mkdir(parents=True)
        samples: list[Any] = [
            {"doc_id": i, "filtered_resps": [[str(x), "False"] for x in answers]} for i, answers in enumerate(documents)
        ]
        (place / "samples_facts_1.jsonl").write_text("\n".join(map(json.dumps, samples)))
        (place / "results_1.json").write_text(json.dumps({"results": {"facts": {"acc,none": 0.5}}}))
    words = [sys.executable, str(CLIENTS / "lm-eval" / "compared.py"), *(str(folder / str(i)) for i in range(2))]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_log_likelihoods_are_compared_answer_by_answer(tmp_path: Path) -> None:
    code, said = compared(tmp_path / "near", [[-1.0, -2.0], [-3.0]], [[-1.125, -2.0], [-2.9375]])
    assert code == 0 and said.startswith("3 log-likelihoods, 0.125 nats apart at most; accuracy 0.500 and 0.500")
    assert compared(tmp_path / "far", [[-1.0, -2.0]], [[-1.0, -2.5]])[0] == 1
    assert compared(tmp_path / "other", [[-1.0, -2.0]], [[-1.0]])[0] == 1
