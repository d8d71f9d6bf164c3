"""Times of a recurrent layer's kernels at the 27B shape, against the bytes that each must move and how fast memory is.

    python3 -m bench.gpu.delta_times

Calls go through 48 layers, whose states outgrow the second-level cache, in one CUDA graph with programmatic dependence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import bench.gpu  # noqa: F401, makes spread importable
from bench.gpu.attention_case import ints, random_tree
from bench.gpu.delta_peer import Heads, closed_us
from bench.gpu.timing import graph_us, read_ceiling
from tandem.kernels.cuda import conv, delta, delta_commit, gate, recurrent_inputs
from tandem.kernels.cuda.launch import TritonKernel, Work

LAYERS, LANES, SLOTS, FACTORS = 48, 8, 2, 32
KEY_HEADS, HEADS, DK, DV, WIDTH = 16, 48, 128, 128, 4
KEYS, VALUES = KEY_HEADS * DK, HEADS * DV
CHANNELS, X_STRIDE = 2 * KEYS + VALUES, 2 * KEYS + 2 * VALUES
STATE, TAIL, MOST = HEADS * DK * DV, (WIDTH - 1) * CHANNELS, 2048
STATE_MB, ROW_MB = 4 * STATE / 1e6, 4 * (CHANNELS + VALUES + 2 * HEADS) / 1e6


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: what was timed, microseconds a layer, and megabytes that it must move."""

    name: str
    us: float
    megabytes: float

    def text(self, ceiling: float) -> str:
        rate = self.megabytes / self.us
        return f"{self.name:<34}{self.us:9.2f}{self.megabytes:9.2f}{rate:9.2f}{1e12 * rate / ceiling:8.0%}"


class Bench:
    """All layers' memory on the device; a pass has one lane of `count` rows."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        made = {"device": "cuda"}
        self.state = torch.randn(SLOTS, LAYERS, STATE, **made) / DK**0.5
        self.tail = torch.randn(SLOTS, LAYERS, TAIL, **made).bfloat16()
        self.raw = torch.randn(LAYERS, FACTORS, CHANNELS, **made).bfloat16()
        self.k = torch.nn.functional.normalize(torch.randn(LAYERS, FACTORS, KEY_HEADS, DK, **made), dim=-1)
        self.u, self.decay = torch.randn(LAYERS, FACTORS, VALUES, **made), torch.rand(LAYERS, FACTORS, HEADS, **made)
        self.x, self.z = torch.randn(MOST, X_STRIDE, **made), torch.randn(MOST, VALUES, **made)
        self.ab, self.weight = torch.randn(MOST, 2 * HEADS, **made), torch.randn(WIDTH * CHANNELS, **made)
        self.a_log, self.dt_bias, self.gain = (torch.randn(n, **made) for n in (HEADS, HEADS, DV))
        self.y, self.o = torch.empty(MOST, CHANNELS, **made), torch.empty(MOST, VALUES, **made)
        self.mixed = torch.empty(MOST, VALUES, **made).bfloat16()
        self.chunk_decay, self.beta = torch.rand(MOST, HEADS, **made), torch.rand(MOST, HEADS, **made)
        self.state_slot = ints([1] * LANES)

    def told(self, parents: list[int]) -> dict[str, Tensor]:
        depth: list[int] = []
        for above in parents:
            depth.append(depth[above] + 1 if above >= 0 else 0)
        return {
            "state_slot": self.state_slot, "lane": ints([0] * len(parents)), "position": ints([100 + d for d in depth]),
            "parent": ints(parents), "count": ints([len(parents)]),
        }  # fmt: skip

    def inputs(self, kind: str, where: dict[str, Tensor]) -> list[Callable[[], object]]:
        rows, verify = len(where["lane"]), kind != "extend"
        work = recurrent_inputs.recurrent_inputs_work(
            rows=rows, verify=verify, tree=kind == "tree", width=WIDTH, key_heads=KEY_HEADS, dk=DK, channels=CHANNELS,
            heads=HEADS, x_stride=X_STRIDE, ab_stride=2 * HEADS, slot=LAYERS * TAIL,
        )  # fmt: skip
        shared = {
            "x": self.x, "weight": self.weight, "a": self.ab, "b": self.ab[:, HEADS:], "a_log": self.a_log,
            "dt_bias": self.dt_bias, "beta": self.beta, "y": self.y, **where,
        }  # fmt: skip
        return [
            call(
                recurrent_inputs.recurrent_inputs, work, **shared, tail=self.tail[0, layer],
                raw=self.raw[layer] if verify else None, k_factor=self.k[layer] if verify else None,
                decay=self.decay[layer] if verify else self.chunk_decay,
            )
            for layer in range(LAYERS)
        ]  # fmt: skip

    def tails(self, where: dict[str, Tensor]) -> list[Callable[[], object]]:
        work = conv.conv_tail_work(
            rows=len(where["lane"]), channels=CHANNELS, width=WIDTH, x_stride=X_STRIDE, slot=LAYERS * TAIL
        )  # fmt: skip
        return [call(conv.conv_tail, work, x=self.x, tail=self.tail[0, layer], **where) for layer in range(LAYERS)]

    def rule(self, kind: str, where: dict[str, Tensor]) -> list[Callable[[], object]]:
        sizes: dict[str, Any] = {
            "rows": len(where["lane"]), "lanes": LANES, "key_heads": KEY_HEADS, "heads": HEADS, "dk": DK, "dv": DV,
            "q_stride": CHANNELS, "k_stride": CHANNELS, "v_stride": CHANNELS, "y_stride": VALUES,
            "slot": LAYERS * STATE,
        }  # fmt: skip
        q, v = self.y, self.y.view(-1)[2 * KEYS :]
        shared = {"q": q, "v": v, "beta": self.beta, "y": self.o, **where}
        if kind == "extend":
            del shared["parent"]
            shared |= {"k": self.y.view(-1)[KEYS:], "decay": self.chunk_decay}
            work = delta.delta_rule_work(**sizes)
            return [call(delta.delta_rule, work, state=self.state[0, layer], **shared) for layer in range(LAYERS)]
        sizes["k_stride"] = KEYS
        work = delta.delta_verify_work(tree=kind == "tree", **sizes)
        return [
            call(
                delta.delta_verify, work, k=self.k[layer], decay=self.decay[layer], u_factor=self.u[layer],
                state=self.state[0, layer], **shared,
            )
            for layer in range(LAYERS)
        ]  # fmt: skip

    def norms(self, rows: int) -> list[Callable[[], object]]:
        work = gate.gated_rms_norm_work(
            rows=rows, heads=HEADS, width=DV, eps=1e-6, rounded=True, x_stride=VALUES, gate_stride=X_STRIDE,
            y_stride=VALUES,
        )  # fmt: skip
        z = self.x.view(-1)[CHANNELS:]
        given = {"x": self.o, "gate": z, "weight": self.gain, "count": ints([rows]), "y": self.mixed}
        return [call(gate.gated_rms_norm, work, **given)] * LAYERS

    def commits(self, moves: int) -> dict[str, Callable[[], object]]:
        shared = {
            "state_slot": self.state_slot, "move_lane": ints([0] * moves), "move_row": ints(list(range(moves))),
            "move_target": ints([100 + i for i in range(moves)]), "count": ints([moves]),
        }  # fmt: skip
        states = delta_commit.delta_commit_work(
            layers=LAYERS, key_heads=KEY_HEADS, heads=HEADS, dk=DK, dv=DV, k_layer=FACTORS * KEYS,
            u_layer=FACTORS * VALUES, decay_layer=FACTORS * HEADS, layer=STATE, slot=LAYERS * STATE,
        )  # fmt: skip
        tails = delta_commit.conv_commit_work(
            moves=FACTORS, layers=LAYERS, lanes=LANES, channels=CHANNELS, width=WIDTH, raw_layer=FACTORS * CHANNELS,
            layer=TAIL, slot=LAYERS * TAIL,
        )  # fmt: skip
        factors = {"k_factor": self.k, "u_factor": self.u, "decay_factor": self.decay}
        return {
            "delta_commit": call(delta_commit.delta_commit, states, state=self.state, **factors, **shared),
            "conv_commit": call(delta_commit.conv_commit, tails, raw=self.raw, tail=self.tail, **shared),
        }


def call(kernel: TritonKernel, work: Work, **pointers: Tensor | None) -> Callable[[], object]:
    """A launch with programmatic dependence, as a program has it."""
    ordered = [pointers[param.name] for param in kernel.signature]
    options = {"num_warps": work.num_warps, "num_stages": work.num_stages, "enable_fp_fusion": False}
    constants = {**dict(work.constants), "PDL": True}
    return lambda: kernel.function[work.grid](*ordered, **constants, **options, launch_pdl=True)


def trees(rows: int) -> dict[str, list[int]]:
    """Parents: as drafters make them, and the worst for a replay: a leaf at every node of a path, deepest first."""
    drafted = [path[-2] if len(path) > 1 else -1 for path in random_tree(rows, 1)]
    half = rows // 2
    return {"tree": drafted, "comb": [*range(-1, half - 1), *range(half - 1, half - 1 - (rows - half), -1)]}


def passes(bench: Bench) -> list[Line]:
    found = []
    cases = [("extend", "step", [-1])]
    for rows in (16, 32):
        cases += [("chain", f"chain {rows}", [*range(-1, rows - 1)])]
        cases += [("tree", f"{name} {rows}", parents) for name, parents in trees(rows).items()]
    cases += [("extend", f"prefill {rows}", [*range(-1, rows - 1)]) for rows in (64, MOST)]
    for kind, name, parents in cases:
        rows, where, repeats = len(parents), bench.told(parents), 5 if len(parents) == MOST else 20
        state = STATE_MB * (2 if kind == "extend" else 1)
        inputs, rule, norms = bench.inputs(kind, where), bench.rule(kind, where), bench.norms(rows)
        if rows > recurrent_inputs.FEW_ROWS:
            tails = bench.tails(where)
            inputs = [each for pair in zip(inputs, tails, strict=True) for each in pair]
        layer = [each for three in zip(*(inputs[i::len(inputs) // LAYERS] for i in range(len(inputs) // LAYERS)),
                                       rule, norms, strict=True) for each in three]  # fmt: skip
        read = 4 * rows * (2 * CHANNELS + 4 * HEADS) / 1e6
        normed = rows * VALUES * (4 + 4 + 2) / 1e6
        moved = state + rows * ROW_MB
        for part, calls, megabytes in (
            ("inputs", inputs, read), ("rule", rule, moved), ("norm", norms, normed),
            ("all three", layer, read + moved + normed),
        ):  # fmt: skip
            us = graph_us(calls, repeats=repeats).median * len(calls) / LAYERS
            found.append(Line(f"{name}: {part}", us, megabytes))
    return found


def commits(bench: Bench) -> list[Line]:
    found = []
    for moves in (1, 5, 16):
        for name, each in bench.commits(moves).items():
            size = LAYERS * (2 * STATE_MB if name == "delta_commit" else 4 * TAIL / 1e6)
            found.append(Line(f"{name}, {moves} moves, all layers", graph_us([each] * 8).median, size))
    return found


def main() -> None:
    ceiling = read_ceiling().median
    print(f"memory reads at {ceiling / 1e12:.2f} TB/s; a layer's state is {STATE_MB:.2f} MB\n")
    print(f"{'':<34}{'us':>9}{'MB':>9}{'TB/s':>9}{'':>8}")
    bench = Bench()
    for line in (*passes(bench), *commits(bench)):
        print(line.text(ceiling), flush=True)
    heads = Heads(LAYERS, KEY_HEADS, HEADS, DK, DV)
    for rows, name, parents in (
        (FACTORS, "chain", ()),
        (FACTORS, "tree", trees(FACTORS)["tree"]),
        (MOST, "prefill", ()),
    ):
        for maker, us in closed_us(heads, rows, parents):
            if isinstance(us, str):
                print(us)
                continue
            moved = STATE_MB * (1 if rows == FACTORS else 2) + rows * ROW_MB / 2
            print(Line(f"closed form, {maker}, {name} {rows}: rule", us, moved).text(ceiling), flush=True)


if __name__ == "__main__":
    main()
