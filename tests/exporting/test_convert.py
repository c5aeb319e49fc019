"""Graphs compute what JAX computes: operations one by one, and every method as a whole."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import onnxruntime
import pytest
from scipy import special

from stmaml.draws import standard_normal
from stmaml.exporting.builder import model_of
from stmaml.exporting.convert import ExportError, converted
from stmaml.exporting.files import compared
from stmaml.exporting.functions import FUNCTIONS
from stmaml.exporting.linear import LINEAR, cholesky
from stmaml.exporting.noise import drawn
from stmaml.exporting.programs import Wanted, of_learner
from stmaml.methods import METHODS
from stmaml.tasks import TaskSpec
from tests.methods.small import VARIANTS, small_learner

X = np.linspace(-2.0, 2.0, 12, dtype=np.float32).reshape(3, 4)
PLACES = np.array([[2], [0], [7]], dtype=np.int32)
SPECS = {
    "real": TaskSpec((3,), 1),
    "student": TaskSpec((3,), 1, noise="student"),
    "mixture": TaskSpec((3,), 1, noise="mixture"),
    "class": TaskSpec((3,), 3, target="class"),
    "binary": TaskSpec((3,), 1, target="binary"),
    "image": TaskSpec((28, 28, 1), 3, target="class"),
}
QUICK = (("maml", "real"), ("st-maml", "real"), ("cnp", "class"), ("platipus", "class"))
LIMIT = 1e-5


def run(program, examples: dict) -> dict[str, np.ndarray]:
    """What the graph of a program says of the examples."""
    graph, _ = converted(lambda key, **given: program(**given), examples)
    session = onnxruntime.InferenceSession(model_of(graph, {}).SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    feed = {name: np.asarray(value) for name, value in examples.items()}
    return dict(zip(names, map(np.asarray, session.run(None, feed)), strict=True))


def many(x):
    """Most operations, each a result of its own."""
    wide = jnp.stack([x, 2 * x], axis=1)
    return {
        "arithmetic": (x - 1) / (x * x + 1) + jnp.maximum(x, 0.5) - jnp.abs(x) ** 3 + x**-2,
        "waves": jnp.sin(x) * jnp.tanh(x) + jax.nn.sigmoid(x) + jax.nn.softplus(3 * x),
        "choice": jnp.where((x > 0) & (x != 2), jnp.floor(x), jnp.ceil(x)) + jnp.round(x) + jnp.sign(x),
        "remainder": jnp.remainder(x, 0.7),
        "sums": x.sum(0) + x.max(0) - x.min(0) + x.prod(0) + jnp.cumsum(x, axis=0)[1],
        "places": jnp.argmax(x * x, axis=1),
        "any": jnp.any(x > 1.9, axis=0),
        "shapes": jnp.pad(x, ((1, 0), (0, 2)))[::2, 1:].T[::-1],
        "spread": jax.lax.pad(x, 0.5, ((-1, 1, 1), (2, -3, 2))),
        "product": jnp.einsum("aij,bij->ba", wide, wide + 1),
        "batched": jnp.einsum("aij,akj->aki", wide, wide),
        "tails": jax.scipy.special.ndtr(4 * x) + jax.scipy.special.ndtri(jax.nn.sigmoid(x)),
        "sorted": jnp.sort(x, axis=0) + jnp.median(x, axis=1, keepdims=True).repeat(4, axis=1),
        "interpolated": jnp.interp(x, jnp.array([-1.0, 0.0, 3.0]), jnp.array([0.0, 5.0, 6.0])),
        "loop": jax.lax.fori_loop(0, 20, lambda i, y: 0.9 * y + jnp.cos(y), x),
        "backwards": jax.lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(4), jnp.tile(x, (4, 1)), reverse=True)[1],
    }


def test_operations_are_those_of_jax():
    expected, found = many(jnp.asarray(X)), run(many, {"x": X})
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


def test_reading_and_writing_by_computed_places():
    def program(x, places):
        return {
            "taken": x[places[:, 0]],
            "along": jnp.take_along_axis(x, places % 4, axis=1),
            "filled": jnp.take(x, places[:, 0], axis=1, mode="fill", fill_value=-1.0),
            "added": jnp.zeros((3, 4)).at[places[:, 0], 1].add(5.0, mode="drop") + x,
            "gradient": jax.grad(lambda x: jnp.square(jnp.take_along_axis(x, places % 4, axis=1)).sum())(x),
            "window": jax.lax.dynamic_slice(x, (places[0, 0], 9), (2, 3)),
        }

    examples = {"x": X, "places": PLACES}
    expected = program(jnp.asarray(X), jnp.asarray(PLACES))
    for name, value in run(program, examples).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.parametrize("name", ["erfc", "expm1", "log1p", "sinh"])
def test_functions_keep_their_digits(name):
    x = np.concatenate([np.linspace(-0.9, 6, 500), [1e-7, -1e-7, 0.01]]).astype(np.float32)
    exact = getattr(special, name, None) or getattr(np, name)
    np.testing.assert_allclose(FUNCTIONS[name](jnp.asarray(x)), exact(x.astype(float)), rtol=3e-6)


@pytest.mark.parametrize("case", range(16))
def test_triangular_systems_are_those_of_lapack(case):
    names = ("left_side", "lower", "transpose_a", "unit_diagonal")
    how = {name: bool(case >> i & 1) for i, name in enumerate(names)}
    square = jr.normal(jr.key(0), (4, 4)) + 4 * jnp.eye(4)
    factor = jnp.tril(square) if how["lower"] else jnp.triu(square)
    right = jr.normal(jr.key(1), (4, 2) if how["left_side"] else (2, 4))
    expected = jax.lax.linalg.triangular_solve(factor, right, **how)
    np.testing.assert_allclose(LINEAR["triangular_solve"](factor, right, **how), expected, rtol=1e-3, atol=1e-4)


def test_the_factor_is_that_of_numpy():
    a = np.asarray(jr.normal(jr.key(0), (5, 5)))
    matrix = a @ a.T + np.eye(5, dtype=np.float32)
    np.testing.assert_allclose(cholesky(jnp.asarray(matrix)), np.linalg.cholesky(matrix), rtol=1e-4, atol=1e-5)


def test_noise_is_read_in_the_order_in_which_it_is_drawn():
    def program(*, key, x):
        first, second = jr.split(key)
        each = jax.vmap(lambda k: standard_normal(k, (2,)))(jr.split(second, 3))
        return {"first": x + standard_normal(first, (4,)), "each": each}

    examples = {"x": np.zeros(4, np.float32)}
    graph, size = converted(program, examples)
    noise = drawn(program, examples, jr.key(5))
    assert (size, noise.shape) == (10, (10,))
    session = onnxruntime.InferenceSession(model_of(graph, {}).SerializeToString())
    found = dict(
        zip([each.name for each in session.get_outputs()], session.run(None, {**examples, "noise": noise}), strict=True)
    )
    expected = program(key=jr.key(5), x=jnp.zeros(4))
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name])


def test_other_random_numbers_are_refused_in_a_sentence():
    with pytest.raises(ExportError, match="not normal"):
        converted(lambda key, x: {"y": x + jr.uniform(key, (4,))}, {"x": np.zeros(4, np.float32)})


def difference(name: str, kind: str) -> float:
    """Between graph and package, for a small version of a method."""
    learner = small_learner(name, SPECS[kind], key=jr.key(0))
    what = of_learner(learner, SPECS[kind], Wanted(labelled=6, asked=5, draws=3, levels=(0.001, 0.05, 0.5)))
    found = compared(what, model_of(converted(what.program, what.examples)[0], {}).SerializeToString())
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "kind"), QUICK)
def test_a_graph_answers_as_the_package_does(name, kind):
    assert difference(name, kind) < LIMIT


EVERY = [
    (name, kind)
    for name in [*METHODS, *VARIANTS]
    for kind in SPECS
    if (name != "protonet" or kind in ("class", "image")) and (name, kind) != ("st-maml-mixture", "real")
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_every_method_exports_for_every_kind_of_target(name, kind):
    assert difference(name, kind) < LIMIT


def test_what_a_graph_cannot_sort_is_said():
    with pytest.raises(ExportError, match="several keys"):
        converted(lambda key, x: {"y": jax.lax.sort((x, x), num_keys=2)[0]}, {"x": np.zeros(4, np.float32)})
