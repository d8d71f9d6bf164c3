"""Writes the plain step of a model as ONNX: embed, the layers one after another, head, over one sequence's cache.

The interface is that of decoders exported with past: input_ids, past_key_values.N.key and .value in, logits,
present.N.key and .value out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from onnx import TensorProto
from torch import Tensor

from tandem import __version__
from tandem.compile.compose import PAGE_TOKENS
from tandem.compile.models.spec import FULL_ATTENTION
from tandem.compile.models.weights import weight_name
from tandem.compile.onnx.graph import Graph
from tandem.compile.onnx.lowering import Lowering
from tandem.compile.onnx.parameters import Parameters
from tandem.compile.onnx.rules import RULES
from tandem.compile.trace import Part, trace_pass

NEW, PAST, TOTAL = "sequence_length", "past_sequence_length", "past_sequence_length + sequence_length"


def data_file(model: Path) -> Path:
    """Where the weights of `model` lie."""
    return model.with_name(f"{model.name}.data")


def write_model(
    parameters: Parameters,
    path: Path,
    *,
    bf16: bool = False,
    metadata: Mapping[str, str] | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Writes `path` and its data file, holding one block of one parameter at a time.

    Weights are written in fp32, or with `bf16` in bf16 where they are stored so, and widened when they are loaded.
    `advance` hears of the numbers written. LoweringError names an operator that has no ONNX form.
    """
    with open(data_file(path), "wb") as data:
        step = Step(parameters, Graph(data, data_file(path).name), bf16, advance)
        step.compose()
    spec = json.dumps(asdict(parameters.spec))
    model = step.graph.model(__version__, {"tandem.spec": spec, **(metadata or {})})
    path.write_bytes(model.SerializeToString(deterministic=True))


@dataclass(slots=True)
class Step:
    """The step in the making."""

    parameters: Parameters
    graph: Graph
    bf16: bool
    advance: Callable[[int], None]
    _lowering: Lowering = field(init=False)
    _weights: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lowering = Lowering(self.graph, RULES)

    def compose(self) -> None:
        spec = self.parameters.spec
        parts = trace_pass(spec, self.parameters.profile, PAGE_TOKENS, tree=False)
        lower = self._lowering.lower
        token, caches = self._inputs()
        inputs = self._rows(token, caches[0]["k_cache"])

        (h,) = lower(parts.embed, inputs | self._bound(parts.embed), "embed")
        delta: dict[str, str] = {}
        for layer, cache in enumerate(caches):
            part = parts.blocks[FULL_ATTENTION] if layer else parts.first
            bound = inputs | self._bound(part, layer) | cache | {"h": h} | delta
            h, out = lower(part, bound, f"layers.{layer}")
            cache |= {name: bound[name] for name in cache}
            delta = {"delta": out}
        (logits,) = lower(parts.head, inputs | self._bound(parts.head) | {"h": h} | delta, "head", outputs=1)

        self.graph.scope = "head"
        logits = self.graph.emit("Unsqueeze", logits, self.graph.constant([0]))
        self.graph.output("logits", logits, TensorProto.FLOAT, (1, NEW, spec.vocab_size))
        for layer, cache in enumerate(caches):
            for name, value in zip(_names("present", layer), cache.values(), strict=True):
                self.graph.output(name, value, TensorProto.FLOAT, self._cache_shape(TOTAL))

    def _inputs(self) -> tuple[str, list[dict[str, str]]]:
        """input_ids, and each layer's caches."""
        ids = self.graph.input("input_ids", TensorProto.INT64, (1, NEW))
        shape = self._cache_shape(PAST)
        caches = []
        for layer in range(self.parameters.spec.num_hidden_layers):
            k, v = (self.graph.input(name, TensorProto.FLOAT, shape) for name in _names("past_key_values", layer))
            caches.append({"k_cache": k, "v_cache": v})
        return ids, caches

    def _rows(self, ids: str, k_cache: str) -> dict[str, str]:
        """What the parts are told of the rows: one sequence, each row behind the one before, all cached straight."""
        graph = self.graph
        graph.scope = "rows"
        zero, one = graph.constant(0), graph.constant(1)
        rows = graph.emit("Squeeze", graph.emit("Shape", ids, start=1, end=2))
        past = graph.emit("Squeeze", graph.emit("Shape", k_cache, start=2, end=3))
        total = graph.emit("Add", past, rows)
        return {
            "token": graph.emit("Reshape", ids, graph.constant([-1])),
            "position": graph.emit("Range", past, total, one),
            "block_table": graph.emit("Unsqueeze", graph.emit("Range", zero, total, one), graph.constant([0])),
            "output_row": graph.emit("Range", zero, rows, one),
            "cos": self._table("cos"),
            "sin": self._table("sin"),
        }

    def _bound(self, part: Part, layer: int | None = None) -> dict[str, str]:
        return {name: self._weight(weight_name(self.parameters.spec, name, layer)) for name in part.parameters.values()}

    def _weight(self, name: str) -> str:
        """A parameter in fp32; of a tied head there is one copy."""
        if name not in self._weights:
            dtype = self.parameters.dtype(name)
            written = dtype if self.bf16 else torch.float32
            value = self.graph.weight(name, self.parameters.shapes[name], written, self._blocks(name))
            if written is torch.bfloat16:
                self.graph.scope = name
                value = self.graph.emit("Cast", value, to=TensorProto.FLOAT)
            if dtype is torch.bfloat16:
                self._lowering.bf16.add(value)
            self._weights[name] = value
        return self._weights[name]

    def _blocks(self, name: str) -> Iterator[Tensor]:
        for block in self.parameters.blocks(name):
            yield block
            self.advance(block.numel())

    def _table(self, name: str) -> str:
        table = self.parameters.table(name)
        return self.graph.weight(f"rope.{name}", table.shape, table.dtype, [table])

    def _cache_shape(self, length: str) -> tuple[int | str, ...]:
        return 1, self.parameters.spec.num_key_value_heads, length, self.parameters.spec.head_dim


def _names(prefix: str, layer: int) -> tuple[str, str]:
    return f"{prefix}.{layer}.key", f"{prefix}.{layer}.value"
