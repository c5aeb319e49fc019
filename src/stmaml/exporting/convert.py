"""From a JAX program to a graph of ONNX.

The program is traced once, with sizes that are known. Calls are written out, what does not depend on the inputs is
computed here, short loops are unrolled, and the noise that an adaptation draws becomes an input."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.extend
import numpy as np
import onnx
from jaxtyping import Float, PRNGKeyArray

from stmaml.exporting.builder import ExportError, Graph, Operand, Value, kind_of
from stmaml.exporting.functions import FUNCTIONS
from stmaml.exporting.indexing import INDEXING
from stmaml.exporting.linear import LINEAR
from stmaml.exporting.operators import OPERATORS, cut, reshaped

CALLS = {"jit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
CALLS |= {"checkpoint": "jaxpr", "remat2": "jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr"}
NOISE = "standard_normal"  # of draws.py
NOISE_INPUT = "noise"
FOLDED_BYTES = 4096  # a constant that is computed here may be larger than what it is made of, up to this
UNROLLED = 6
RULES = {**OPERATORS, **INDEXING}


class Keys:
    """Stands for keys of random numbers, of which a graph has none."""


KEYS = Keys()
Known = Operand | Keys
Program = Callable[..., dict[str, Any]]
"""Named arrays, and `key`, in; named arrays out."""


@dataclass
class Noise:
    """Standard normal numbers that the graph reads one after the other: from one input, or from those given."""

    given: Float[np.ndarray, " k"] | None = None
    size: int = 0

    def take(self, graph: Graph, shape: Sequence[int]) -> Operand:
        """The next numbers, in this shape."""
        count = int(np.prod(shape))
        start, self.size = self.size, self.size + count
        if self.given is not None:
            return self.given[start : self.size].reshape(shape)
        whole = Value(NOISE_INPUT, (0,), "float32")
        return reshaped(graph, cut(graph, whole, [start], [self.size], [1]), shape)


@dataclass
class Walk:
    """Goes through a program and writes the graph."""

    noise: Noise

    def run(self, graph: Graph, jaxpr: Any, constants: Sequence[Any], given: Sequence[Known]) -> list[Known]:
        """What the program makes of these operands."""
        known: dict[Any, Known] = {}

        def read(variable: Any) -> Known:
            if isinstance(variable, jax.extend.core.Literal):
                aval: Any = variable.aval
                return np.asarray(variable.val, dtype=aval.dtype)
            return known[variable]

        known.update(zip(jaxpr.constvars, map(as_operand, constants), strict=True))
        known.update(zip(jaxpr.invars, given, strict=True))
        for equation in live(jaxpr):
            results = self._results(graph, equation, [read(variable) for variable in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def _results(self, graph: Graph, equation: Any, operands: list[Known]) -> Sequence[Known]:
        name, params, out = equation.primitive.name, plain(equation.params), [each.aval for each in equation.outvars]
        if name == "jit" and params["name"] == NOISE:
            if graph.outer is not None:
                raise ExportError("noise is drawn inside a loop, which a graph cannot do. Export another method.")
            return [self.noise.take(graph, out[0].shape)]
        if name in CALLS:
            inside = params[CALLS[name]]
            return self.run(graph, inside.jaxpr, inside.consts, operands)
        if any(isinstance(operand, Keys) for operand in operands) or name.startswith("random_"):
            return [KEYS] * len(out)
        values = [operand for operand in operands if not isinstance(operand, Keys)]
        if name == "cond":
            return self._cond(graph, values, params)
        if name == "scan":
            return self._scan(graph, values, params, out)
        if (folded := _folded(equation, values)) is not None:
            return folded
        if name in FUNCTIONS:
            return self._function(graph, FUNCTIONS[name], values, equation)
        if name in LINEAR:
            return self._function(graph, partial(LINEAR[name], **params), values, equation)
        if name not in RULES:
            raise ExportError(f"the learner uses '{name}', for which there is no operation in a graph.")
        return RULES[name](graph, values, out, **params)

    def _function(
        self, graph: Graph, function: Callable, operands: Sequence[Operand], equation: Any
    ) -> Sequence[Known]:
        """What a function written in other primitives makes of the operands."""
        like = [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in equation.invars]
        traced = jax.make_jaxpr(function)(*like)
        return self.run(graph, traced.jaxpr, traced.consts, operands)

    def _cond(self, graph: Graph, operands: Sequence[Operand], params: Any) -> Sequence[Known]:
        """The branch that is taken; all of them where that is not known yet, of which one is then chosen."""
        which, *given = operands
        if isinstance(which, np.ndarray):
            taken = params["branches"][int(np.clip(which, 0, len(params["branches"]) - 1))]
            return self.run(graph, taken.jaxpr, taken.consts, given)
        first, *others = [self.run(graph, each.jaxpr, each.consts, given) for each in params["branches"]]
        for number, other in enumerate(others, start=1):
            reached = np.array(number, dtype=which.dtype)
            later = graph.node("GreaterOrEqual", which, reached, shape=(), dtype=np.bool_)
            first = [_either(graph, later, a, b) for a, b in zip(first, other, strict=True)]
        return first

    def _scan(self, graph: Graph, operands: Sequence[Operand], params: Any, out: Any) -> Sequence[Known]:
        loop = Loop(self, params, operands)
        return loop.unrolled(graph) if params["length"] <= UNROLLED else loop.looped(graph, out)


@dataclass
class Loop:
    """A scan: a body that is called so many times, with what it hands on and a slice of what it goes along."""

    walk: Walk
    params: Any
    operands: Sequence[Operand]

    @property
    def _parts(self) -> tuple[Sequence[Operand], Sequence[Operand], Sequence[Operand]]:
        first, second = self.params["num_consts"], self.params["num_consts"] + self.params["num_carry"]
        return self.operands[:first], self.operands[first:second], self.operands[second:]

    def _body(self, graph: Graph, carried: Sequence[Operand], slices: Sequence[Operand]) -> list[Operand]:
        inside = self.params["jaxpr"]
        found = self.walk.run(graph, inside.jaxpr, inside.consts, [*self._parts[0], *carried, *slices])
        if any(isinstance(one, Keys) for one in found):
            raise ExportError("random numbers are drawn inside a loop, which a graph cannot do. Export another method.")
        return [one for one in found if not isinstance(one, Keys)]

    def unrolled(self, graph: Graph) -> list[Operand]:
        """The body written out as often as it is called."""
        _, carried, along = self._parts
        count, each = len(carried), []
        turns = range(self.params["length"])
        for turn in reversed(turns) if self.params["reverse"] else turns:
            found = self._body(graph, carried, [_one(graph, x, turn) for x in along])
            carried, rest = found[:count], found[count:]
            each.append(rest)
        ordered = each[::-1] if self.params["reverse"] else each
        return [*carried, *(_stacked(graph, parts) for parts in zip(*ordered, strict=True))]

    def looped(self, graph: Graph, out: Any) -> list[Operand]:
        """One node with the body in it."""
        _, carried, along = self._parts
        store, body, length = graph.store, graph.inner(), self.params["length"]
        turn = Value(store.fresh("turn"), (), "int64")
        going = Value(store.fresh("going"), (), "bool")
        inside = [Value(store.fresh("carried"), tuple(x.shape), graph.value(x).dtype) for x in carried]
        place: Operand = turn
        if self.params["reverse"]:
            place = body.node("Sub", np.array(length - 1), turn, shape=(), dtype=np.int64)
        slices = [body.node("Gather", x, place, shape=x.shape[1:], dtype=x.dtype, axis=0) for x in along]
        found = self._body(body, inside, slices)
        ends = [body.renamed(one, store.fresh("end")) for one in (going, *found)]
        results = [
            Value(store.fresh("v"), tuple(each.shape), end.dtype) for each, end in zip(out, ends[1:], strict=True)
        ]
        inputs = [graph.value(np.array(length, dtype=np.int64)).name, "", *(graph.value(x).name for x in carried)]
        proto = body.proto(store.fresh("body"), [turn, going, *inside], ends)
        graph.many("Loop", inputs, [each.name for each in results], body=proto)
        if not self.params["reverse"]:
            return [*results]
        flipped = [RULES["rev"](graph, [x], [x], dimensions=[0])[0] for x in results[len(carried) :]]
        return [*results[: len(carried)], *flipped]


def as_operand(value: Any) -> Known:
    """A constant of a program as an array; keys as what stands for them."""
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return KEYS
    return np.asarray(value)


def plain(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters with whole numbers of Python in place of NumPy's."""

    def one(value: Any) -> Any:
        if isinstance(value, tuple):
            make = getattr(value, "_make", tuple)  # some tuples have names for their places
            return make(map(one, value))
        return int(value) if isinstance(value, np.integer) else value

    return {name: one(value) for name, value in params.items()}


def live(jaxpr: Any) -> list[Any]:
    """The equations that the results need, in their order."""
    wanted, kept = {id(variable) for variable in jaxpr.outvars}, []
    for equation in reversed(jaxpr.eqns):
        if any(id(variable) in wanted for variable in equation.outvars):
            kept.append(equation)
            wanted.update(id(variable) for variable in equation.invars)
    return kept[::-1]


def _folded(equation: Any, operands: Sequence[Operand]) -> list[Operand] | None:
    """The results of an equation of constants, unless they would take much more room than these."""
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    out = [each.aval for each in equation.outvars]
    size = sum(int(np.prod(each.shape)) * each.dtype.itemsize for each in out)
    if len(arrays) < len(operands) or size > max(FOLDED_BYTES, sum(array.nbytes for array in arrays)):
        return None
    found = equation.primitive.bind(*map(jax.numpy.asarray, arrays), **equation.params)
    return [np.asarray(each) for each in (found if equation.primitive.multiple_results else [found])]


def _either(graph: Graph, later: Operand, first: Known, other: Known) -> Known:
    if isinstance(first, Keys) or isinstance(other, Keys):
        return KEYS
    return graph.node("Where", later, other, first, shape=first.shape, dtype=first.dtype)


def _one(graph: Graph, x: Operand, place: int) -> Operand:
    if isinstance(x, np.ndarray):
        return np.asarray(x[place])
    starts, ends = [place, *[0] * (len(x.shape) - 1)], [place + 1, *x.shape[1:]]
    return reshaped(graph, cut(graph, x, starts, ends, [1] * len(x.shape)), x.shape[1:])


def _stacked(graph: Graph, parts: Sequence[Operand]) -> Operand:
    shape = (len(parts), *parts[0].shape)
    rows = [reshaped(graph, part, (1, *part.shape)) for part in parts]
    return graph.node("Concat", *rows, shape=shape, dtype=parts[0].dtype, axis=0)


def converted(
    program: Program, examples: dict[str, Any], noise: Float[np.ndarray, " k"] | None = None
) -> tuple[onnx.GraphProto, int]:
    """The graph of a program called with arrays like `examples`, whose inputs and outputs keep their names, and how
    many numbers its input `noise` has; it has no such input where the noise is given."""
    traced, outputs = traced_program(program, examples, jax.random.key(0))
    graph, drawn = Graph(), Noise(noise)
    inputs = [Value(name, tuple(value.shape), kind_of(value.dtype)) for name, value in examples.items()]
    found = Walk(drawn).run(graph, traced.jaxpr, traced.consts, [*inputs, KEYS])
    values = [one for one in found if not isinstance(one, Keys)]
    if len(values) < len(found):
        raise ExportError("the learner draws random numbers that are not normal, and a graph has none. Export another.")
    named = [graph.renamed(one, name) for name, one in zip(outputs, values, strict=True)]
    wanted = drawn.size if noise is None else 0
    if wanted:
        inputs.append(Value(NOISE_INPUT, (wanted,), "float32"))
    return graph.proto("stmaml", inputs, named), wanted


def traced_program(program: Program, examples: dict[str, Any], key: PRNGKeyArray) -> tuple[Any, list[str]]:
    """The equations of a program, whose operands are the examples and then the key, and the names of its results."""
    names = list(examples)

    def ordered(*values: Any) -> dict[str, Any]:
        return program(key=values[-1], **dict(zip(names, values[:-1], strict=True)))

    traced, shapes = jax.make_jaxpr(ordered, return_shape=True)(*examples.values(), key)
    return traced, sorted(shapes)
