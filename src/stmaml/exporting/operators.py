"""What each of JAX's primitives becomes in ONNX: arithmetic, shapes, sums and products."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stmaml.exporting.builder import ELEMENTS, Graph, Operand, Value, kind_of

Rule = Callable[..., Sequence[Operand]]
"""(graph, operands, shapes and types of the results, parameters by name) -> results."""

SAME = {
    **{"add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min"},
    **{"neg": "Neg", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "tanh": "Tanh", "logistic": "Sigmoid", "abs": "Abs"},
    **{"sign": "Sign", "floor": "Floor", "ceil": "Ceil", "sin": "Sin", "cos": "Cos", "pow": "Pow", "erf": "Erf"},
    **{"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"},
    **{"lt_to": "Less", "le_to": "LessOrEqual", "eq_to": "Equal"},
    **{"and": "And", "or": "Or", "not": "Not", "round": "Round"},
}
"""Primitives that ONNX has under another name."""
AS_IT_IS = ("stop_gradient", "copy", "copy_p", "optimization_barrier", "reduce_precision")
REDUCED = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd"}


def ints(values: Sequence[int]) -> np.ndarray:
    """Whole numbers as ONNX wants shapes and axes."""
    return np.array(values, dtype=np.int64)


def reshaped(graph: Graph, x: Operand, shape: Sequence[int]) -> Operand:
    """The same numbers in another shape."""
    if tuple(x.shape) == tuple(shape):
        return x
    if isinstance(x, np.ndarray):
        return x.reshape(shape)
    return graph.node("Reshape", x, ints(shape), shape=shape, dtype=x.dtype)


def transposed(graph: Graph, x: Operand, order: Sequence[int]) -> Operand:
    """The same numbers with axes in another order."""
    if list(order) == sorted(order):
        return x
    if isinstance(x, np.ndarray):
        return x.transpose(order)
    shape = [x.shape[axis] for axis in order]
    return graph.node("Transpose", x, shape=shape, dtype=x.dtype, perm=list(order))


def expanded(graph: Graph, x: Operand, shape: Sequence[int]) -> Operand:
    """Numbers repeated along axes of length 1."""
    if tuple(x.shape) == tuple(shape):
        return x
    return graph.node("Expand", x, ints(shape), shape=shape, dtype=x.dtype)


def cast(graph: Graph, x: Operand, dtype: Any) -> Operand:
    """Numbers of another type."""
    kind = kind_of(dtype)
    if isinstance(x, np.ndarray):
        return x.astype(kind)
    return x if x.dtype == kind else graph.node("Cast", x, shape=x.shape, dtype=kind, to=ELEMENTS[kind])


def cut(graph: Graph, x: Operand, starts: Sequence[int], ends: Sequence[int], steps: Sequence[int]) -> Value:
    """Every `steps`-th number from `starts` to before `ends`, by axis."""
    shape = [-(-(end - start) // step) for start, end, step in zip(starts, ends, steps, strict=True)]
    axes = ints(range(len(shape)))
    return graph.node("Slice", x, ints(starts), ints(ends), axes, ints(steps), shape=shape, dtype=x.dtype)


def _plain(op: str) -> Rule:
    def rule(graph: Graph, operands: Sequence[Operand], out: Any, **_: Any) -> Sequence[Operand]:
        return [graph.node(op, *operands, shape=out[0].shape, dtype=out[0].dtype)]

    return rule


def _same(graph: Graph, operands: Sequence[Operand], out: Any, **_: Any) -> Sequence[Operand]:
    return operands


def _reduction(op: str) -> Rule:
    def rule(graph: Graph, operands: Sequence[Operand], out: Any, *, axes: Sequence[int], **_: Any) -> list[Operand]:
        (x,) = operands
        if not axes:
            return [x]
        return [graph.node(op, x, ints(axes), shape=out[0].shape, dtype=out[0].dtype, keepdims=0)]

    return rule


def _any_or_all(op: str) -> Rule:
    def rule(graph: Graph, operands: Sequence[Operand], out: Any, **params: Any) -> list[Operand]:
        numbers = cast(graph, operands[0], np.int32)
        (found,) = _reduction(op)(graph, [numbers], [Value("", out[0].shape, "int32")], **params)
        return [cast(graph, found, np.bool_)]

    return rule


def _argument(op: str) -> Rule:
    def rule(graph: Graph, operands: Sequence[Operand], out: Any, *, axes: Sequence[int], **_: Any) -> list[Operand]:
        found = graph.node(op, operands[0], shape=out[0].shape, dtype=np.int64, axis=axes[0], keepdims=0)
        return [cast(graph, found, out[0].dtype)]

    return rule


def _ne(graph: Graph, operands: Sequence[Operand], out: Any) -> list[Operand]:
    equal = graph.node("Equal", *operands, shape=out[0].shape, dtype=np.bool_)
    return [graph.node("Not", equal, shape=out[0].shape, dtype=np.bool_)]


def _rem(graph: Graph, operands: Sequence[Operand], out: Any) -> list[Operand]:
    return [graph.node("Mod", *operands, shape=out[0].shape, dtype=out[0].dtype, fmod=1)]


def _square(graph: Graph, operands: Sequence[Operand], out: Any) -> list[Operand]:
    return [graph.node("Mul", operands[0], operands[0], shape=out[0].shape, dtype=out[0].dtype)]


def _integer_pow(graph: Graph, operands: Sequence[Operand], out: Any, *, y: int, **_: Any) -> list[Operand]:
    (x,) = operands
    shape, dtype = out[0].shape, out[0].dtype
    power: Operand = x
    for bit in bin(abs(y))[3:]:
        power = graph.node("Mul", power, power, shape=shape, dtype=dtype)
        power = graph.node("Mul", power, x, shape=shape, dtype=dtype) if bit == "1" else power
    return [graph.node("Reciprocal", power, shape=shape, dtype=dtype) if y < 0 else power]


def _clamp(graph: Graph, operands: Sequence[Operand], out: Any) -> list[Operand]:
    low, x, high = operands
    raised = graph.node("Max", x, low, shape=out[0].shape, dtype=out[0].dtype)
    return [graph.node("Min", raised, high, shape=out[0].shape, dtype=out[0].dtype)]


def _is_finite(graph: Graph, operands: Sequence[Operand], out: Any) -> list[Operand]:
    shape = out[0].shape
    odd = [graph.node(op, operands[0], shape=shape, dtype=np.bool_) for op in ("IsInf", "IsNaN")]
    return [graph.node("Not", graph.node("Or", *odd, shape=shape, dtype=np.bool_), shape=shape, dtype=np.bool_)]


def _select_n(graph: Graph, operands: Sequence[Operand], out: Any) -> list[Operand]:
    which, otherwise, where = operands  # which are booleans: three cases and more are not used
    return [graph.node("Where", cast(graph, which, np.bool_), where, otherwise, shape=out[0].shape, dtype=out[0].dtype)]


def _convert(graph: Graph, operands: Sequence[Operand], out: Any, **_: Any) -> list[Operand]:
    return [cast(graph, operands[0], out[0].dtype)]


def _broadcast(
    graph: Graph, operands: Sequence[Operand], out: Any, *, broadcast_dimensions: Sequence[int], **_: Any
) -> list[Operand]:
    (x,) = operands
    shape = [1] * len(out[0].shape)
    for axis, place in enumerate(broadcast_dimensions):
        shape[place] = x.shape[axis]
    return [expanded(graph, reshaped(graph, x, shape), out[0].shape)]


def _reshape(graph: Graph, operands: Sequence[Operand], out: Any, **_: Any) -> list[Operand]:
    return [reshaped(graph, operands[0], out[0].shape)]


def _transpose(graph: Graph, operands: Sequence[Operand], out: Any, *, permutation: Sequence[int]) -> list[Operand]:
    return [transposed(graph, operands[0], permutation)]


def _concatenate(graph: Graph, operands: Sequence[Operand], out: Any, *, dimension: int) -> list[Operand]:
    return [graph.node("Concat", *operands, shape=out[0].shape, dtype=out[0].dtype, axis=dimension)]


def _stack(graph: Graph, operands: Sequence[Operand], out: Any, *, axis: int) -> list[Operand]:
    shape = [*operands[0].shape]
    shape.insert(axis, 1)
    return _concatenate(graph, [reshaped(graph, x, shape) for x in operands], out, dimension=axis)


def _split(graph: Graph, operands: Sequence[Operand], out: Any, *, sizes: Sequence[int], axis: int) -> list[Operand]:
    (x,) = operands
    parts: list[Operand] = []
    for place, size in zip(np.cumsum(sizes) - np.array(sizes), sizes, strict=True):
        starts, ends = [0] * len(x.shape), [*x.shape]
        starts[axis], ends[axis] = int(place), int(place + size)
        parts.append(cut(graph, x, starts, ends, [1] * len(x.shape)))
    return parts


def _unstack(graph: Graph, operands: Sequence[Operand], out: Any, *, axis: int) -> list[Operand]:
    parts = _split(graph, operands, out, sizes=[1] * len(out), axis=axis)
    return [reshaped(graph, part, each.shape) for part, each in zip(parts, out, strict=True)]


def _tile(graph: Graph, operands: Sequence[Operand], out: Any, *, reps: Sequence[int]) -> list[Operand]:
    return [graph.node("Tile", operands[0], ints(reps), shape=out[0].shape, dtype=out[0].dtype)]


def _slice(
    graph: Graph,
    operands: Sequence[Operand],
    out: Any,
    *,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None,
) -> list[Operand]:
    return [cut(graph, operands[0], start_indices, limit_indices, strides or [1] * len(start_indices))]


def _rev(graph: Graph, operands: Sequence[Operand], out: Any, *, dimensions: Sequence[int]) -> list[Operand]:
    count = [-1] * len(dimensions), [-(2**31)] * len(dimensions), [*dimensions], [-1] * len(dimensions)
    return [graph.node("Slice", operands[0], *map(ints, count), shape=out[0].shape, dtype=out[0].dtype)]


def _iota(graph: Graph, operands: Sequence[Operand], out: Any, *, dimension: int, **_: Any) -> list[Operand]:
    shape = [1] * len(out[0].shape)
    shape[dimension] = out[0].shape[dimension]
    numbers = np.arange(shape[dimension], dtype=kind_of(out[0].dtype)).reshape(shape)
    return [expanded(graph, numbers, out[0].shape)]


def _pad(
    graph: Graph, operands: Sequence[Operand], out: Any, *, padding_config: Sequence[tuple[int, int, int]]
) -> list[Operand]:
    x, fill = operands
    for axis, (_, _, between) in enumerate(padding_config):
        x = _spread(graph, x, fill, axis, between)
    low, high = ([max(each[end], 0) for each in padding_config] for end in (0, 1))
    shape = [size + a + b for size, a, b in zip(x.shape, low, high, strict=True)]
    padded = graph.node("Pad", x, ints([*low, *high]), fill, shape=shape, dtype=x.dtype)
    starts = [max(-each[0], 0) for each in padding_config]  # less than no padding cuts off
    ends = [size - max(-each[1], 0) for size, each in zip(shape, padding_config, strict=True)]
    return [padded if tuple(shape) == tuple(out[0].shape) else cut(graph, padded, starts, ends, [1] * len(shape))]


def _spread(graph: Graph, x: Operand, fill: Operand, axis: int, between: int) -> Operand:
    """Numbers with so many others between them along an axis."""
    if not between:
        return x
    split = [*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]]
    pads = [0] * (2 * len(split))
    pads[len(split) + axis + 1] = between
    wide = [*split]
    wide[axis + 1] = 1 + between
    padded = graph.node("Pad", reshaped(graph, x, split), ints(pads), fill, shape=wide, dtype=x.dtype)
    joined = [*x.shape]
    joined[axis] *= 1 + between
    ends = [*joined]
    ends[axis] -= between
    return cut(graph, reshaped(graph, padded, joined), [0] * len(ends), ends, [1] * len(ends))


def _dot_general(
    graph: Graph, operands: Sequence[Operand], out: Any, *, dimension_numbers: Any, **_: Any
) -> list[Operand]:
    """As one product of stacked matrices: batch, rows, summed times batch, summed, columns."""
    (left_sum, right_sum), (left_batch, right_batch) = dimension_numbers
    left, right = (cast(graph, x, np.float32) for x in operands)
    rows = [axis for axis in range(len(left.shape)) if axis not in (*left_sum, *left_batch)]
    columns = [axis for axis in range(len(right.shape)) if axis not in (*right_sum, *right_batch)]
    sizes = [math.prod(left.shape[axis] for axis in axes) for axes in (left_batch, rows, left_sum)]
    batch, height, depth = sizes
    width = math.prod(right.shape[axis] for axis in columns)
    stacked = [batch] if left_batch else []
    a = reshaped(graph, transposed(graph, left, [*left_batch, *rows, *left_sum]), [*stacked, height, depth])
    b = reshaped(graph, transposed(graph, right, [*right_batch, *right_sum, *columns]), [*stacked, depth, width])
    product = graph.node("MatMul", a, b, shape=[*stacked, height, width], dtype=np.float32)
    return [cast(graph, reshaped(graph, product, out[0].shape), out[0].dtype)]


def _cumsum(graph: Graph, operands: Sequence[Operand], out: Any, *, axis: int, reverse: bool) -> list[Operand]:
    place = np.array(axis, dtype=np.int64)
    return [graph.node("CumSum", operands[0], place, shape=out[0].shape, dtype=out[0].dtype, reverse=int(reverse))]


OPERATORS: dict[str, Rule] = {
    **{name: _plain(op) for name, op in SAME.items()},
    **dict.fromkeys(AS_IT_IS, _same),
    **{name: _reduction(op) for name, op in REDUCED.items()},
    **{"reduce_or": _any_or_all("ReduceMax"), "reduce_and": _any_or_all("ReduceMin")},
    **{"argmax": _argument("ArgMax"), "argmin": _argument("ArgMin")},
    **{"ne": _ne, "rem": _rem, "square": _square, "integer_pow": _integer_pow, "clamp": _clamp},
    **{"is_finite": _is_finite, "select_n": _select_n, "convert_element_type": _convert},
    **{"broadcast_in_dim": _broadcast, "transpose": _transpose, "concatenate": _concatenate, "stack": _stack},
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    **{"split": _split, "unstack": _unstack, "tile": _tile, "slice": _slice, "rev": _rev, "iota": _iota},
    **{"pad": _pad, "dot_general": _dot_general, "cumsum": _cumsum},
}
