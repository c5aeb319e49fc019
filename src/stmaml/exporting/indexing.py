"""Reading and writing by places that are computed: JAX's gather, scatter and sort in ONNX.

Arrays are flattened, so that a place is one number. It is the sum of where a window starts, which is computed, and of
where in the window a number stands, which is known beforehand."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode

from stmaml.exporting.builder import ExportError, Graph, Operand, Value
from stmaml.exporting.operators import Rule, cast, ints, reshaped, transposed


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _starts(
    graph: Graph,
    places: Operand,
    shape: Sequence[int],
    window: Sequence[int],
    axes: Sequence[int],
    batches: tuple[Sequence[int], Sequence[int]],
) -> tuple[Operand, Operand]:
    """Where each window starts in the flat array, moved inside it, and whether it lay inside; one for each of the
    leading places. `batches` are axes of the array and of the places that go together."""
    strides, count = _strides(shape), places.shape[:-1]
    last = np.array([shape[axis] - window[axis] for axis in axes], dtype=np.int64)
    wide = cast(graph, places, np.int64)
    low = graph.node("Max", wide, np.zeros(1, np.int64), shape=places.shape, dtype=np.int64)
    inside = graph.node("Min", low, last, shape=places.shape, dtype=np.int64)
    same = graph.node("Equal", inside, wide, shape=places.shape, dtype=np.bool_)
    least = graph.node("ReduceMin", cast(graph, same, np.int32), ints([-1]), shape=count, dtype=np.int32, keepdims=0)
    scaled = graph.node("Mul", inside, ints([strides[axis] for axis in axes]), shape=places.shape, dtype=np.int64)
    start: Operand = graph.node("ReduceSum", scaled, ints([-1]), shape=count, dtype=np.int64, keepdims=0)
    for axis, place in zip(*batches, strict=True):
        along = np.arange(count[place]).reshape([-1 if at == place else 1 for at in range(len(count))])
        start = graph.node("Add", start, along * strides[axis], shape=count, dtype=np.int64)
    return start, cast(graph, least, np.bool_)


def _offsets(shape: Sequence[int], window: Sequence[int], kept: Sequence[int]) -> np.ndarray:
    """Where the numbers of a window stand behind its start, one axis for each kept."""
    total = np.zeros([window[axis] for axis in kept], dtype=np.int64)
    for place, axis in enumerate(kept):
        along = np.arange(window[axis]).reshape([-1 if at == place else 1 for at in range(len(kept))])
        total = total + along * _strides(shape)[axis]
    return total


def _flat_places(graph: Graph, starts: Operand, offsets: np.ndarray) -> Operand:
    """Starts and offsets added: the axes of starts, then those of the window."""
    shape = (*starts.shape, *offsets.shape)
    wide = reshaped(graph, starts, (*starts.shape, *[1] * offsets.ndim))
    return graph.node("Add", wide, offsets, shape=shape, dtype=np.int64)


def _window_order(rank: int, window_axes: Sequence[int]) -> list[int]:
    """From axes of places, then of the window, to where a result has them."""
    others = iter(range(rank - len(window_axes)))
    inner = {axis: rank - len(window_axes) + i for i, axis in enumerate(window_axes)}
    return [inner[axis] if axis in inner else next(others) for axis in range(rank)]


def _gather(
    graph: Graph,
    operands: Sequence[Operand],
    out: Any,
    *,
    dimension_numbers: Any,
    slice_sizes: Sequence[int],
    mode: Any,
    fill_value: Any,
    **_: Any,
) -> list[Operand]:
    x, places = operands
    of = dimension_numbers
    gone = (*of.collapsed_slice_dims, *of.operand_batching_dims)
    kept = [axis for axis in range(len(x.shape)) if axis not in gone]
    batches = (of.operand_batching_dims, of.start_indices_batching_dims)
    starts, inside = _starts(graph, places, x.shape, slice_sizes, of.start_index_map, batches)
    flat = _flat_places(graph, starts, _offsets(x.shape, slice_sizes, kept))
    found: Operand = graph.node(
        "Gather", reshaped(graph, x, [math.prod(x.shape)]), flat, shape=flat.shape, dtype=x.dtype, axis=0
    )
    if mode == GatherScatterMode.FILL_OR_DROP:
        fill = np.array(np.nan if fill_value is None else fill_value).astype(out[0].dtype)
        there = reshaped(graph, inside, (*starts.shape, *[1] * len(kept)))
        found = graph.node("Where", there, found, fill, shape=flat.shape, dtype=x.dtype)
    return [transposed(graph, found, _window_order(len(out[0].shape), of.offset_dims))]


def _scatter(reduction: str) -> Rule:
    def rule(
        graph: Graph, operands: Sequence[Operand], out: Any, *, dimension_numbers: Any, mode: Any, **_: Any
    ) -> list[Operand]:
        x, places, updates = operands
        of, rank = dimension_numbers, len(updates.shape)
        gone = (*of.inserted_window_dims, *of.operand_batching_dims)
        kept = [axis for axis in range(len(x.shape)) if axis not in gone]
        window = [1] * len(x.shape)
        for axis, at in zip(kept, of.update_window_dims, strict=True):
            window[axis] = updates.shape[at]
        batches = (of.operand_batching_dims, of.scatter_indices_batching_dims)
        starts, inside = _starts(graph, places, x.shape, window, of.scatter_dims_to_operand_dims, batches)
        flat = _flat_places(graph, starts, _offsets(x.shape, window, kept))
        outer = [axis for axis in range(rank) if axis not in of.update_window_dims]
        moved = transposed(graph, updates, [*outer, *of.update_window_dims])
        there = reshaped(graph, inside, (*starts.shape, *[1] * len(kept)))
        return [_written(graph, x, flat, moved, there, reduction)]

    return rule


def _written(graph: Graph, x: Operand, flat: Operand, updates: Operand, inside: Operand, reduction: str) -> Operand:
    """The array with updates at flat places; those that lie outside go to one more place, which is cut off."""
    size, count = math.prod(x.shape), math.prod(flat.shape)
    safe = graph.node("Where", inside, flat, np.array(size), shape=flat.shape, dtype=np.int64)
    longer = graph.node(
        "Concat", reshaped(graph, x, [size]), np.zeros(1, x.dtype), shape=[size + 1], dtype=x.dtype, axis=0
    )
    parts = (reshaped(graph, safe, [count]), reshaped(graph, updates, [count]))
    written = graph.node(
        "ScatterElements", longer, *parts, shape=[size + 1], dtype=x.dtype, axis=0, reduction=reduction
    )
    ends = (ints([0]), ints([size]), ints([0]))
    return reshaped(graph, graph.node("Slice", written, *ends, shape=[size], dtype=x.dtype), x.shape)


def _sort(
    graph: Graph, operands: Sequence[Operand], out: Any, *, dimension: int, num_keys: int, **_: Any
) -> list[Operand]:
    """By the first operand; others follow it."""
    if num_keys != 1:
        raise ExportError("the learner sorts by several keys, which a graph cannot do. Export another method.")
    first, size = operands[0], operands[0].shape[dimension]
    values, places = (Value(graph.store.fresh("v"), tuple(first.shape), kind) for kind in (out[0].dtype.name, "int64"))
    inputs = [graph.value(first).name, graph.value(ints([size])).name]
    graph.many("TopK", inputs, [values.name, places.name], axis=dimension, largest=0, sorted=1)
    follow = [
        graph.node("GatherElements", x, places, shape=x.shape, dtype=x.dtype, axis=dimension) for x in operands[1:]
    ]
    return [values, *follow]


def _dynamic_slice(graph: Graph, operands: Sequence[Operand], out: Any, *, slice_sizes: Sequence[int]) -> list[Operand]:
    x, *starts = operands
    each = [reshaped(graph, cast(graph, start, np.int64), [1]) for start in starts]
    places = graph.node("Concat", *each, shape=[len(each)], dtype=np.int64, axis=0)
    axes = list(range(len(x.shape)))
    start, _ = _starts(graph, places, x.shape, slice_sizes, axes, ((), ()))
    flat = _flat_places(graph, start, _offsets(x.shape, slice_sizes, axes))
    return [graph.node("Gather", reshaped(graph, x, [math.prod(x.shape)]), flat, shape=flat.shape, dtype=x.dtype)]


INDEXING: dict[str, Rule] = {
    "gather": _gather,
    "scatter": _scatter("none"),
    "scatter-add": _scatter("add"),
    "sort": _sort,
    "dynamic_slice": _dynamic_slice,
}
