"""The recipe search: its traced numbers do what the settings of that name do."""

import argparse
import dataclasses
import runpy
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stmaml.benchmarks import regression2d
from stmaml.inner import InnerLoop
from stmaml.methods import st_maml
from stmaml.tasks import TaskSpec
from tests.changed import changed
from tests.methods.small import small_task

SCRIPT = Path(__file__).parents[1] / "studies" / "search.py"
SPEC = TaskSpec((2,), 1)
SMALL = changed(
    st_maml.Config(), hidden=(4,), encoder=(4,), z_hidden=(), z_size=2, h_size=2, inner=InnerLoop(inner_steps=1)
)


@pytest.fixture(scope="module")
def search() -> dict:
    if not SCRIPT.exists():
        pytest.skip("studies/ is not part of this copy of the sources")
    return runpy.run_path(str(SCRIPT), run_name="search")


def test_a_traced_step_size_is_that_of_the_settings(search, key):
    """One program for all combinations gives each the loss it has on its own."""
    task = small_task(SPEC, key=key)
    learner = eqx.filter_jit(SMALL.build)(SPEC, key=key)
    rates = (0.05, 0.3)
    varied = jax.vmap(lambda rate: search["Varied"](learner, rate, None).loss(task, key=key)[0])
    together = eqx.filter_jit(varied)(jnp.array(rates))
    loss = eqx.filter_jit(lambda learner: learner.loss(task, key=key)[0])
    alone = [
        loss(dataclasses.replace(learner, settings=dataclasses.replace(SMALL, inner=InnerLoop(rate, inner_steps=1))))
        for rate in rates
    ]
    np.testing.assert_allclose(together, np.array(alone), rtol=1e-5)
    assert abs(alone[0] - alone[1]) > 0.01


def test_a_traced_range_is_that_of_the_settings(search, key):
    plain, wide = (
        regression2d.Config(input_range=extent, shots=3, query_size=2) for extent in ((0.0, 5.0), (-5.0, 5.0))
    )
    ranged = search["ranged"](plain.open().train, (-5.0, 5.0))
    got, want = (eqx.filter_jit(lambda s: s.sample(4, key=key))(source) for source in (ranged, wide.open().train))
    np.testing.assert_allclose(got.tasks.support.x, want.tasks.support.x, rtol=1e-6)
    np.testing.assert_allclose(got.tasks.query.y, want.tasks.query.y, rtol=1e-5)
    assert (got.tasks.support.x < 0).any()


def test_the_grid_is_every_combination(search):
    flags = argparse.Namespace(inner_lr=[0.1, 0.2], outer_lr=[1.0, 2.0, 3.0], kl_weight=[], input_range=[[0.0, 5.0]])
    base = argparse.Namespace(method_settings=SMALL, training=argparse.Namespace(outer_lr=9.0))
    grid = search["combinations"](base, flags)
    assert {(one["inner_lr"], one["outer_lr"]) for one in grid} == {(a, b) for a in (0.1, 0.2) for b in (1.0, 2.0, 3.0)}
    assert len(grid) == 6
    assert all(one["kl_weight"] is None and one["range"] == (0.0, 5.0) for one in grid)
