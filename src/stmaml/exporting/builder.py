"""A graph of ONNX under construction: equal nodes and equal constants are kept once, and what no output needs is not.

Sizes of all arrays are known, so that shapes are constants throughout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from stmaml.errors import StmamlError

OPSET = 18
IR_VERSION = 9  # what readers of 2023 understand
ELEMENTS = {
    "float32": TensorProto.FLOAT,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
NARROW = {"int8": "int32", "uint8": "int32", "bfloat16": "float32", "float16": "float32"}
"""What readers lack operations for is computed in the next wider type."""


class ExportError(StmamlError):
    """A learner that cannot be written as a graph."""


@dataclass(frozen=True)
class Value:
    """An array that the graph computes."""

    name: str
    shape: tuple[int, ...]
    dtype: str


Operand = Value | np.ndarray


def kind_of(dtype: Any) -> str:
    """The type that numbers of `dtype` have in the graph."""
    name = np.dtype(dtype).name
    return NARROW.get(name, name)


@dataclass
class Store:
    """What the graph and the bodies of its loops share: constants, and names that are used once."""

    constants: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    tensors: dict[str, onnx.TensorProto] = field(default_factory=dict)
    count: int = 0

    def fresh(self, stem: str) -> str:
        """A name that nothing has yet."""
        self.count += 1
        return f"{stem}_{self.count}"

    def constant(self, array: np.ndarray) -> Value:
        """The array as a value, stored once however often it is used."""
        array = np.ascontiguousarray(array, dtype=kind_of(array.dtype)).reshape(array.shape)
        which = (array.dtype.name, array.shape, array.tobytes())
        if which not in self.constants:
            self.constants[which] = self.fresh("c")
            self.tensors[self.constants[which]] = numpy_helper.from_array(array, self.constants[which])
        return Value(self.constants[which], array.shape, array.dtype.name)


@dataclass
class Graph:
    """Nodes in their order; the body of a loop is a graph with the one around it as `outer`."""

    store: Store = field(default_factory=Store)
    outer: "Graph | None" = None
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    known: dict[tuple, Value] = field(default_factory=dict)

    def value(self, operand: Operand) -> Value:
        """An operand as a value."""
        return operand if isinstance(operand, Value) else self.store.constant(operand)

    def node(self, op: str, *operands: Operand, shape: Sequence[int], dtype: Any, **attributes: Any) -> Value:
        """What an operation with one result makes of its operands."""
        inputs = [self.value(operand).name for operand in operands]
        which = (op, *inputs, repr(sorted(attributes.items())))
        found = self._find(which)
        if found is None:
            found = Value(self.store.fresh("v"), tuple(shape), kind_of(dtype))
            self.nodes.append(helper.make_node(op, inputs, [found.name], **attributes))
            self.known[which] = found
        return found

    def _find(self, which: tuple) -> Value | None:
        if which in self.known:
            return self.known[which]
        return None if self.outer is None else self.outer._find(which)

    def many(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> None:
        """An operation with several results, or with a body."""
        self.nodes.append(helper.make_node(op, list(inputs), list(outputs), **attributes))

    def inner(self) -> "Graph":
        """An empty graph for the body of a loop, which sees all that this one holds."""
        return Graph(self.store, self)

    def renamed(self, operand: Operand, name: str) -> Value:
        """An operand under a name of its own, as inputs and outputs need."""
        value = self.value(operand)
        self.nodes.append(helper.make_node("Identity", [value.name], [name]))
        return Value(name, value.shape, value.dtype)

    def proto(self, name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> onnx.GraphProto:
        """The graph without what no output needs; constants are those of the outermost."""
        nodes = _needed(self.nodes, {value.name for value in outputs})
        used = {read for node in nodes for read in _reads(node)} if self.outer is None else set()
        tensors = [tensor for name, tensor in self.store.tensors.items() if name in used]
        return helper.make_graph(nodes, name, [*map(_info, inputs)], [*map(_info, outputs)], initializer=tensors)


def model_of(graph: onnx.GraphProto, about: Mapping[str, str]) -> onnx.ModelProto:
    """A whole model, checked, with what is to be known of it."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="stmaml")
    model.ir_version = IR_VERSION
    helper.set_model_props(model, dict(about))
    onnx.checker.check_model(model)
    return model


def _info(value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, ELEMENTS[value.dtype], value.shape)


def _needed(nodes: Sequence[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    """The nodes behind the wanted names, in their order."""
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted = wanted | set(_reads(node))
    return kept[::-1]


def _reads(node: onnx.NodeProto) -> list[str]:
    """All names that a node reads, its body's included."""
    bodies = [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
    inside = [name for body in bodies for each in body.node for name in _reads(each)]
    ends = [output.name for body in bodies for output in body.output]
    return [*node.input, *inside, *ends]
