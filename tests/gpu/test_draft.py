"""Drafters on the GPU: kernels against references over whole vocabularies, and the demo hybrid with its own layer.

Guesses are held against MTP by hand in float64; nothing that is drafted may change a text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tandem.artifacts import layout
from tandem.compile.models.families import resolve
from tandem.compile.train.model import Model
from tandem.kernels.cuda.head import scatter_rows, scatter_rows_work
from tandem.kernels.cuda.norm import add_rms_norm, add_rms_norm_taps, add_rms_norm_taps_work, add_rms_norm_work
from tandem.kernels.cuda.table import KERNELS
from tests.commands import Commands
from tests.compile.models import oracle
from tests.compile.models.mtp_reference import Drafter
from tests.gpu.launching import launch
from tests.kernels.cuda.likeliest import Found, likeliest
from tests.kernels.harness import assert_bits
from tests.tiny import make_checkpoint
from tests.tiny_hybrid import add_mtp

DEMO = Path(__file__).resolve().parents[2] / "bench" / "demo-hybrid"
WIDTHS = (8192, 49_152, 248_320)
CHAIN = 4
GUESSES = """
import json, sys
from pathlib import Path
from tandem.artifacts.reader import open_bundle
from tandem.keys import Kind
from tandem.runtime.checks.drafting import DraftLab
from tandem.runtime.checks.lab import Lab
from tandem.runtime.loading import open_executor
from tandem.runtime.rows import DraftSpan, draft_rows

executor = open_executor(open_bundle(Path(sys.argv[1])), num_pages=8)
lab, ids, depth = Lab(executor, 1), json.loads(sys.argv[2]), int(sys.argv[3])
taps = [600 - i for i in range(len(ids))]
lab.extend(0, ids, 0, 1, taps)
found = []
for end in range(4, len(ids)):  # a chain behind rows 0..end-1, whose last token is ids[end]
    DraftLab(lab).sync(0, ids[1:end], 0, taps[: end - 1])
    span, chain = DraftSpan(0, end - 1, ids[end : end + 1], taps[end - 1 : end], 3), []
    for step in range(depth):
        outcome = executor.draft(Kind.DRAFT, draft_rows(Kind.DRAFT, [span], lab.table))
        chain.append([outcome.token[0].tolist(), outcome.logit[0].tolist(), float(outcome.lse[0])])
        chain[-1].append(executor.logits(0).tolist() if end == len(ids) - 1 else [])
        span = DraftSpan(0, end + step, [int(outcome.token[0, 0])], [3], 3)
    rows = draft_rows(Kind.DRAFT, [DraftSpan(0, end - 1, ids[end : end + 1], taps[end - 1 : end], 3)], lab.table)
    rows.chain = depth  # the same by itself
    outcome = executor.draft(Kind.DRAFT, rows)
    alone = [[o.token[0].tolist(), o.logit[0].tolist(), float(o.lse[0])] for o in (outcome, *outcome.behind)]
    assert alone == [guess[:3] for guess in chain], f"chain behind {end}"
    found.append(chain)
executor.close()
frameworks = sorted({"torch", "triton", "transformers"} & set(sys.modules))
print(json.dumps({"found": found, "frameworks": frameworks}))
"""


def on_gpu(kernel: str, work: Any, **pointers: Any) -> None:
    launch(KERNELS[kernel], work, **pointers)


def rows_of(width: int, kind: str) -> np.ndarray:
    """32 rows of logits fp32: as a model's are, so flat that every id counts, or of few values."""
    scale = {"peaked": 3.0, "flat": 0.3, "ties": 1.0}[kind]
    rows = (np.random.default_rng(width).standard_normal((32, width)) * scale).astype(np.float32)
    return np.round(rows) if kind == "ties" else rows


@pytest.mark.parametrize("top", [2, 16])
@pytest.mark.parametrize("kind", ["peaked", "flat", "ties"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_likeliest_are_those_of_a_stable_sort_with_bits_of_their_own(width: int, kind: str, top: int) -> None:
    logits = rows_of(width, kind)
    ids = np.argsort(-logits.astype(np.float64), axis=1, kind="stable")[:, :top]
    sums = torch.from_numpy(logits).double().logsumexp(1).numpy()
    whole = likeliest(logits, top, launch=on_gpu)
    assert whole.token.tolist() == ids.tolist()
    assert_bits(whole.logit, np.take_along_axis(logits, ids, 1))
    np.testing.assert_allclose(whole.lse, sums, rtol=0, atol=3e-5)
    for rows in (1, 7, 24):
        for found, wanted in zip(likeliest(logits[:rows], top, most=32, launch=on_gpu), whole, strict=True):
            assert_bits(found, wanted[:rows])


def test_odd_logits_leave_ids_of_the_vocabulary() -> None:
    width = 3000
    odd = np.random.default_rng(1).choice(
        np.array([-np.inf, -0.0, 0.0, 1.0, 1e-40, 3e38, -3e38], np.float32), (6, width)
    )
    odd[1, 7], odd[2], odd[3, [5, 900]], odd[4] = np.nan, np.nan, np.inf, -np.inf
    found: Found = likeliest(odd, 16, launch=on_gpu)
    known = np.where(np.isnan(odd), -np.inf, odd).astype(np.float64)
    assert found.token.tolist() == np.argsort(-known, axis=1, kind="stable")[:, :16].tolist()
    assert np.isnan(found.lse[1:3]).all() and found.lse[3] == np.inf and found.lse[4] == -np.inf


@pytest.mark.parametrize("width", [320, 576, 5120])
def test_rows_left_for_a_drafter_have_the_bits_of_the_norm(width: int) -> None:
    rows, generator = 32, torch.Generator().manual_seed(width)
    x, delta, weight = (torch.randn(n, width, generator=generator) for n in (rows, rows, 1))
    tap_out = torch.randperm(50, generator=generator)[:rows].to(torch.int32)
    tap_out[::3] = -1
    picked, strides = torch.tensor([31, 0, 7, 7], dtype=torch.int32), dict.fromkeys(("x_stride", "y_stride"), width)
    y, ring = torch.full((4, width), torch.nan), torch.full((50, width), torch.nan)
    count, outputs = (torch.tensor([n], dtype=torch.int32) for n in (rows, 4))
    work = add_rms_norm_taps_work(
        rows=rows, outputs=4, width=width, eps=1e-6, delta_stride=width, ring_stride=width, **strides
    )
    launch(
        add_rms_norm_taps, work, x=x, delta=delta, weight=weight, row=picked, count=outputs, tap_out=tap_out,
        num_rows=count, y=y, ring=ring,
    )  # fmt: skip
    normed, by_two = torch.full((rows, width), torch.nan), torch.full((50, width), torch.nan)
    single = add_rms_norm_work(rows, width, 1e-6, width, width, width, width)
    launch(add_rms_norm, single, x=x, delta=delta, weight=weight, row=None, count=count, sum=None, y=normed)
    work = scatter_rows_work(rows, width, width, width)
    launch(scatter_rows, work, x=normed, tap_out=tap_out, count=count, ring=by_two)
    assert torch.equal(y, normed[picked.long()])
    kept = tap_out >= 0
    assert torch.equal(ring[tap_out[kept].long()], normed[kept])
    assert_bits(ring.numpy(), by_two.numpy())
    assert ring.isnan().any(1).sum() == 50 - kept.sum()


MODELS = {"demo": "bf16", "qwen3_5-odd": "fp32"}
ERRORS = {"fp32": 1e-4, "bf16": 6e-2}
"""Of logits against float64, as a share of their norm."""


@pytest.fixture(scope="module", params=list(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if name == "demo":
        return DEMO
    made = make_checkpoint(tmp_path_factory.mktemp(name) / "checkpoint", name)
    add_mtp(made)
    return made


@pytest.fixture(scope="module")
def bundle(name: str, commands: Commands, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint compiled for this GPU with its drafting layer; the compile proves every entry."""
    made = tmp_path_factory.mktemp("drafting") / name
    flags = ("--profile", MODELS[name], "--device", "cuda-sm90", "--max-seq-len", "1100", "-o", str(made), "-q")
    commands.output("compile.cli", str(checkpoint), *flags)
    return made


def test_every_entry_was_proved_and_priced(bundle: Path) -> None:
    proof = json.loads((bundle / layout.PROOF).read_text())
    assert proof["cases"] > 1000 and proof["differing"] == 0, proof["first"]
    table = json.loads((bundle / layout.PRICES).read_text())["1024"]
    assert 0 < table["draft"]["1"] <= table["draft"]["32"] and 0 < table["sync"]["1"] <= table["sync"]["1024"]


@pytest.fixture(scope="module")
def ids(name: str) -> list[int]:
    if name != "demo":
        return [(7 * i * i + 3) % 300 for i in range(40)]
    from tokenizers import Tokenizer

    text = Path(json.__file__).read_text()
    return list(Tokenizer.from_file(str(DEMO / "tokenizer.json")).encode(text).ids[200:260])


def by_hand(checkpoint: Path, ids: list[int]) -> Tensor:
    """Logits [rows, CHAIN, V] in float64 of chains behind every row of `ids` but the last."""
    config, tensors = oracle.read_config(checkpoint), oracle.read_tensors(checkpoint).tensors
    model = Model(resolve(config)).double()
    model.load_state_dict({name: tensor.double() for name, tensor in tensors.items()})
    with torch.no_grad():
        known = model.hidden(torch.tensor([ids]))[0]
        return Drafter(config, tensors).chains(torch.tensor(ids[1:]), known[:-1], CHAIN)[1]


def test_guesses_are_those_of_the_definitions_in_float64(
    name: str, commands: Commands, bundle: Path, checkpoint: Path, ids: list[int]
) -> None:
    done = commands.python(GUESSES, str(bundle), json.dumps(ids), str(CHAIN))
    assert done.code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["frameworks"] == []
    logits, agreed, counted = by_hand(checkpoint, ids), 0, 0
    for row, chain in enumerate(told["found"], 3):
        for depth, (tokens, values, lse, whole) in enumerate(chain):
            wanted = logits[row, depth]
            order = torch.argsort(wanted, descending=True, stable=True)[:2].tolist()
            counted += 1
            agreed += tokens[0] == order[0]
            if tokens[0] != order[0]:
                break  # the chain goes on from another token
            error = ERRORS[MODELS[name]] * wanted.abs().max().item()
            assert abs(values[0] - wanted[tokens[0]].item()) < error
            assert abs(lse - wanted.logsumexp(-1).item()) < error
            if whole:
                found = torch.tensor(whole, dtype=torch.float64)
                assert (found - wanted).norm() / wanted.norm() < ERRORS[MODELS[name]]
                assert tokens[0] == int(found.argmax())
    assert agreed >= (1.0 if MODELS[name] == "fp32" else 0.9) * counted, f"{agreed} of {counted}"


def test_speculation_never_changes_an_answer(commands: Commands, bundle: Path) -> None:
    commands.output("runtime.checks.cli", "spec", str(bundle), "--quick")


def test_a_bundle_computes_what_it_was_sealed_with(commands: Commands, bundle: Path) -> None:
    commands.output("runtime.checks.cli", "identity", str(bundle), str(bundle))


def test_an_answer_is_the_same_whoever_drafts(commands: Commands, bundle: Path) -> None:
    """And a load tells of no drafter that is off: the probe held."""
    flags = ("--prompt", "def test_the_answer(self):\\n    self.assert", "--raw", "--max-tokens", "60", "--json")
    answers = []
    for drafter in ("none", "lookup", "mtp", "auto"):
        done = commands.run("runtime.cli", str(bundle), *flags, "--drafter", drafter)
        assert done.code == 0 and "it is off" not in done.stderr, done.stderr
        answers.append(json.loads(done.stdout)["ids"])
    assert answers[0] == answers[1] == answers[2] == answers[3] and len(answers[0]) > 1
