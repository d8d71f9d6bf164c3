"""An ONNX graph in the making: nodes under readable names, weights in a data file beside the model.

Knows nothing of torch graphs, operators of ours, or bundles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import onnx
import torch
from onnx import StringStringEntryProto, TensorProto, helper, numpy_helper
from torch import Tensor

OPSET, IR_VERSION = 18, 8
"""The oldest pair that has all operators used; newer readers take it, older ones refuse the newer."""
ALIGNMENT = 4096
"""Weights start at whole pages of the data file, so that readers can map them."""

ELEMENTS = {torch.float32: TensorProto.FLOAT, torch.bfloat16: TensorProto.BFLOAT16}


class Graph:
    """Values are names. A node asked for twice stands once; `scope` goes before the names of new ones.

    `data` takes the weights; readers look for it under the file name `location` beside the model.
    """

    def __init__(self, data: BinaryIO, location: str) -> None:
        self.scope = ""
        self._data, self._location = data, location
        self._proto = onnx.GraphProto(name="step")
        self._known: dict[Any, tuple[str, ...]] = {}
        self._taken: Counter[str] = Counter()
        self._outputs: dict[str, str] = {}

    def input(self, name: str, element: int, shape: Sequence[int | str]) -> str:
        """An input; sizes given as text are names of what may vary."""
        self._proto.input.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def output(self, name: str, value: str, element: int, shape: Sequence[int | str]) -> None:
        """Hands out the result `value` of some node under `name`."""
        self._proto.output.append(helper.make_tensor_value_info(name, element, shape))
        self._outputs[value] = name

    def constant(self, value: int | float | Sequence[int], dtype: type = np.int64) -> str:
        """A small constant that stands in the model itself."""
        array: np.ndarray = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = (self._name("constant"),)
            self._proto.initializer.append(numpy_helper.from_array(array, self._known[key][0]))
        return self._known[key][0]

    def weight(self, name: str, shape: Sequence[int], dtype: torch.dtype, blocks: Iterable[Tensor]) -> str:
        """A weight, fp32 or bf16, appended to the data file from blocks of its rows."""
        self._data.write(bytes(-self._data.tell() % ALIGNMENT))
        offset = self._data.tell()
        for block in blocks:
            bits = block.to(dtype).contiguous().flatten().view(torch.uint8)
            self._data.write(bits.numpy().data)
        place = {"location": self._location, "offset": offset, "length": self._data.tell() - offset}
        proto = TensorProto(name=name, data_type=ELEMENTS[dtype], dims=shape, data_location=TensorProto.EXTERNAL)
        proto.external_data.extend(StringStringEntryProto(key=key, value=str(value)) for key, value in place.items())
        self._proto.initializer.append(proto)
        return name

    def emit(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The value of a node with one output."""
        return self.emit_all(operator, inputs, 1, **attributes)[0]

    def emit_all(self, operator: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> tuple[str, ...]:
        """The values of a node with several outputs."""
        key = (operator, tuple(inputs), tuple(sorted(attributes.items())))
        if key not in self._known:
            name = self._name(f"{self.scope}/{operator}")
            values = (name,) if outputs == 1 else tuple(f"{name}.{i}" for i in range(outputs))
            self._proto.node.append(helper.make_node(operator, inputs, values, name=name, **attributes))
            self._known[key] = values
        return self._known[key]

    def model(self, producer_version: str, metadata: Mapping[str, str]) -> onnx.ModelProto:
        """The finished model, whose outputs bear the names they were given."""
        for node in self._proto.node:
            for values in (node.input, node.output):
                values[:] = [self._outputs.get(value, value) for value in values]
        model = helper.make_model(
            self._proto,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="tandem",
            producer_version=producer_version,
        )
        helper.set_model_props(model, dict(metadata))
        return model

    def _name(self, wanted: str) -> str:
        self._taken[wanted] += 1
        return wanted if self._taken[wanted] == 1 else f"{wanted}_{self._taken[wanted]}"
