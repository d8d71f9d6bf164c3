"""The real SmolLM2 carried to ONNX Runtime writes the greedy text that it writes here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tokenizers import Tokenizer

from tandem.artifacts.reader import open_bundle
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.onnx.check import Session, check_rules, compare
from tandem.compile.onnx.export import write_model
from tandem.compile.onnx.parameters import Parameters
from tandem.compile.profile import find_profile
from tandem.keys import Kind
from tests.staged import Lane, stage

pytestmark = pytest.mark.smollm2
CERTAIN = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "import numpy as np\n\ndef softmax(x):\n",
    "1, 2, 3, 4, 5, 6,",
)
"""After these no two tokens are nearly as likely: rounding to bf16 in another order of sums decides nothing."""
OPEN = ("def fibonacci(n):\n", "Once upon a time, in a village by the sea,")
LENGTH = 32


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that goes with the test: half a gigabyte is not left behind."""
    with TemporaryDirectory() as path:
        yield Path(path)


def greedy(opened: Session, ids: Sequence[int], stop_ids: Sequence[int] = ()) -> list[int]:
    """Up to LENGTH ids by ONNX Runtime, a stop id being the last. `opened` has no text, and gets none."""
    session = copy(opened)
    written = [int(session.extend(ids)[-1].argmax())]
    while len(written) < LENGTH and written[-1] not in stop_ids:
        written.append(int(session.extend(written[-1:])[-1].argmax()))
    return written


def test_a_bf16_bundle_keeps_its_text(smollm2_bundle: Path, folder: Path) -> None:
    bundle, model = open_bundle(smollm2_bundle), folder / "model.onnx"
    parameters = Parameters.of(bundle)
    write_model(parameters, model, bf16=True)
    check_rules(model)
    compare(model, parameters)
    tokenizer, session = Tokenizer.from_file(str(bundle.tokenizer_path)), Session(model)
    for prompt in CERTAIN:
        command = [str(Path(sys.executable).parent / "tandem-run"), str(smollm2_bundle), "--drafter", "none", "--json"]
        command += ["--raw", "--prompt", prompt, "--max-tokens", str(LENGTH)]
        answer = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        assert len(ids) == answer["stats"]["prompt_tokens"]
        assert greedy(session, ids, bundle.manifest.tokenizer.stop_ids) == answer["ids"], prompt


def test_fp32_weights_keep_their_text(smollm2_gguf: Path, folder: Path) -> None:
    checkpoint, model = open_checkpoint(str(smollm2_gguf)), folder / "model.onnx"
    staged = stage(checkpoint.config, checkpoint, "fp32", folder, max_rows=128, kinds=[Kind.EXTEND])
    write_model(Parameters(staged.spec, find_profile("fp32"), 256, staged.weights), model)
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    executor, session = staged.executor(threads=1, num_pages=5), Session(model)
    for prompt in (*CERTAIN, *OPEN):
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        assert greedy(session, ids) == Lane(executor).greedy(ids, LENGTH), prompt
    executor.close()
