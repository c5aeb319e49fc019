"""Training that is left and taken up again ends where it would have ended."""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.benchmarks.hierarchy_rows import Shape
from stmaml.errors import RunError
from stmaml.prior.learner import Learner, Sizes
from stmaml.prior.pieces import Plan, Rest, compile_here, first_rest, rounded, train
from stmaml.prior.states import MEAN, MEMORY, load_rest, save_rest
from stmaml.prior.steps import begin_steps

SIZES = Sizes(64, 1, 64, 1)
SHAPES = ((Shape(3, 2, 4, 2), 3), (Shape(3, 2, 3, 2, most_groups=9, longest=6), 3))
PLAN = Plan(1e-2, warm_up=4, fall_from=16, fall_steps=16, rest=8, seed=3, half=False, keep=0.9)


def same(one: Rest, other: Rest) -> bool:
    pairs = zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True)
    return one.step == other.step and all(np.array_equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def compiled():
    """Each program is compiled once for all tests."""
    kept: dict = {}
    return lambda functions: kept or kept.update(compile_here(functions)) or kept


@pytest.fixture(scope="module")
def rests(compiled) -> list[Rest]:
    """Of a training without a break."""
    begun = first_rest(Learner(SIZES, key=jr.key(0)))
    return [begun, *train(begun, PLAN, SHAPES, (0, 1), compiled=compiled)]


def test_a_training_that_is_taken_up_again_ends_with_the_same_bits(rests, compiled, tmp_path):
    """From files, at a rest of the steady part and at one of the fall."""
    assert [rest.step for rest in rests] == [0, 8, 16, 24, 32]
    for place in (1, 3):
        save_rest(rests[place], PLAN, tmp_path)
        back, plan = load_rest(tmp_path)
        assert plan == PLAN
        assert same(back, rests[place])
        assert (tmp_path / MEAN).exists() == (place == 3)  # before the fall it is the weights
        *_, last = train(back, plan, SHAPES, (0, 1), compiled=compiled)
        assert same(last, rests[-1])


def test_every_step_counts(rests, compiled):
    """A training that begins a rest later, or without the optimizer's memory, ends elsewhere."""
    assert not any(same(one, other) for one, other in pairwise(rests))
    forgot = replace(rests[1].state, memory=begin_steps(rests[1].state.weights))
    for begun in (replace(rests[1], step=0), replace(rests[1], state=forgot)):
        *_, last = train(begun, PLAN, SHAPES, (0, 1), compiled=compiled)
        assert not same(replace(last, step=rests[-1].step), rests[-1])


def test_a_rest_holds_no_more_than_files_do(rests):
    for rest in rests:
        assert all(
            np.array_equal(a, b)
            for a, b in zip(jax.tree.leaves(rounded(rest.state)), jax.tree.leaves(rest.state), strict=True)
        )
    assert all(np.isfinite(rest.loss) for rest in rests[1:])


def test_the_mean_begins_with_the_fall(rests):
    for rest, running in zip(rests, (False, False, False, True, True), strict=True):
        leaves = [jax.tree.leaves(part) for part in (rest.state.weights, rest.state.mean)]
        assert running != all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))


def test_files_of_another_training_are_refused(rests, tmp_path):
    save_rest(rests[1], PLAN, tmp_path / "one")
    save_rest(first_rest(Learner(Sizes(128, 1, 64, 1), key=jr.key(0))), PLAN, tmp_path / "other")
    (tmp_path / "one" / MEMORY).write_bytes((tmp_path / "other" / MEMORY).read_bytes())
    with pytest.raises(RunError, match="not of the training"):
        load_rest(tmp_path / "one")


def test_the_rate_rises_stays_and_falls_to_0():
    plan = Plan(1.0, warm_up=10, fall_from=100, fall_steps=50)
    assert plan.rate_at(0) == pytest.approx(0.1)
    assert plan.rate_at(60) == 1.0
    assert plan.rate_at(125) == pytest.approx(0.5)
    assert plan.rate_at(150) == 0.0
    assert plan.end == 150
    assert Plan(1.0, warm_up=10).rate_at(10**6) == 1.0
    assert (plan.keep_at(99), plan.keep_at(100)) == (0.0, plan.keep)
    assert jnp.isinf(Plan().end)
