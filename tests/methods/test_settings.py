"""Settings of methods that make no sense: each is refused in a sentence, none ends in a traceback or in silence."""

import contextlib
import dataclasses
from typing import Any

import equinox as eqx
import jax.random as jr
import pytest

from stmaml.errors import SettingError
from stmaml.methods import METHODS
from stmaml.tasks import TaskSpec
from tests.methods.small import SMALL, small_task

VECTORS, IMAGES = TaskSpec((2,), 3, target="class"), TaskSpec((8, 8, 1), 3, target="class")
WIDTHS = [
    pytest.param(name, field.name, spec, id=f"{name}-{field.name}-{'images' if spec is IMAGES else 'vectors'}")
    for name in sorted(METHODS)
    for field in dataclasses.fields(SMALL[name])
    if isinstance(getattr(SMALL[name], field.name), tuple)
    for spec in ([VECTORS] if field.name == "hidden" else [VECTORS, IMAGES])  # which makes no difference to images
]


@pytest.mark.parametrize(("name", "setting", "spec"), WIDTHS)
def test_a_network_without_layers_works_or_is_refused(name, setting, spec):
    """Shapes alone are computed: nothing is compiled."""

    def loss(key):
        settings: Any = dataclasses.replace(SMALL[name], **{setting: ()})  # pyright: ignore[reportArgumentType]
        settings = dataclasses.replace(settings, conv=dataclasses.replace(settings.conv, conv_blocks=2))
        return settings.build(spec, key=key).loss(small_task(spec, key=key), key=key)[0]

    with contextlib.suppress(SettingError):
        assert eqx.filter_eval_shape(loss, jr.key(0)).shape == ()


@pytest.mark.parametrize(
    ("name", "setting", "value", "message"),
    [
        ("hsml", "sigma", 0.0, "--sigma must be above 0; got 0.0"),
        ("hsml", "num_leaves", 0, "--num-leaves must be at least 1; got 0"),
        ("hsml", "num_nodes", 0, "--num-nodes must be at least 1; got 0"),
        ("hsml", "sample_size", 0, "--sample-size must be at least 1; got 0"),
        ("hsml", "reconstruction_weight", -0.1, "--reconstruction-weight must be at least 0; got -0.1"),
        ("arml", "sigma", -2.0, "--sigma must be above 0; got -2.0"),
        ("arml", "num_vertices", 0, "--num-vertices must be at least 1; got 0"),
        ("arml", "num_prototypes", 0, "--num-prototypes must be at least 1; got 0"),
        ("arml", "reconstruction_weight", float("nan"), "--reconstruction-weight must be a finite number; got nan"),
        ("bmaml", "leader_steps", -1, "--leader-steps must be at least 1; got -1"),
        ("bmaml", "prior_weight", -1.0, "--prior-weight must be at least 0; got -1.0"),
        ("platipus", "mean_steps", -1, "--mean-steps must be at least 0; got -1"),
        ("platipus", "start_gamma", float("inf"), "--start-gamma must be a finite number; got inf"),
        ("platipus", "start_log_std", float("nan"), "--start-log-std must be a finite number; got nan"),
        ("mmaml", "encoder", (), "--encoder needs one width or more, each at least 1; got none"),
        ("mmaml", "encoder", (8, 0), "--encoder needs one width or more, each at least 1; got 8 0"),
        ("anp", "keys", (), "--keys needs one width or more, each at least 1; got none"),
        ("np", "z_size", 0, "--z-size must be at least 1; got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, setting, value, message):
    with pytest.raises(SettingError, match=message):
        dataclasses.replace(SMALL[name], **{setting: value})


def test_a_leader_that_nobody_chases_may_stand_still():
    settings: Any = SMALL["bmaml"]
    assert dataclasses.replace(settings, meta_loss="query", leader_steps=0).leader_steps == 0
