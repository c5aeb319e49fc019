"""Whether losses of one device and of several part by rounding alone.

    python studies/device_rounding.py [--steps 40] [--devices 4]

The same MAML is trained, with the same key, by one device, by several simulated ones that share its tasks, and by one
whose first weights differ in their last bit; each in single and in double precision. Prints how far the losses are from
those of the first, relative to them, at every tenth step. If it is rounding, a changed last bit parts as far and as
fast as several devices do, and both shrink by the ratio of the precisions, some 5e8, where numbers have more digits.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

EVERY, TASKS = 10, 24


def losses(steps: int, devices: int, seed: int, nudge: bool = False) -> np.ndarray:
    """Of each step of MAML on curves of two inputs, as `stmaml train regression2d --method maml` has it."""
    from stmaml.experiments import fresh, run_keys, scaling_for
    from stmaml.recipes import recipe
    from stmaml.training import initial_state, run_steps
    from stmaml.training.devices import ONE_DEVICE, layout_for

    experiment = recipe("regression2d", "maml")
    config = replace(experiment.training, tasks_per_batch=TASKS, steps=steps)
    benchmark = experiment.benchmark_settings.open()
    source = benchmark.train
    init_key, key = run_keys(seed)
    learner = fresh(experiment, source.spec, scaling_for(experiment, benchmark), key=init_key)
    learner = _nudged(learner) if nudge else learner
    layout = layout_for(str(devices), tasks=config.tasks_per_batch) if devices > 1 else ONE_DEVICE
    state = layout.whole(initial_state(learner, config))
    found = [run_steps(state, source, key, jnp.arange(EVERY), config, layout)]
    for first in range(EVERY, steps, EVERY):
        found.append(run_steps(found[-1][0], source, key, first + jnp.arange(EVERY), config, layout))
    return np.concatenate([np.asarray(logged[0]) for _, logged in found])


def _nudged(learner: Any) -> Any:
    """Each weight with its last bit changed."""
    arrays, rest = eqx.partition(learner, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(lambda leaf: jnp.nextafter(leaf, jnp.full_like(leaf, jnp.inf)), arrays), rest)


def apart(steps: int, devices: int, seed: int, double: bool) -> dict[str, list[float]]:
    """How far losses of the others are from one device's, at every tenth step."""
    jax.config.update("jax_enable_x64", double)
    one = losses(steps, 1, seed)
    others = {f"{devices} devices": losses(steps, devices, seed), "last bit": losses(steps, 1, seed, nudge=True)}
    return {name: (np.abs(each - one) / np.abs(one))[EVERY - 1 :: EVERY].tolist() for name, each in others.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Whether devices part by rounding alone.")
    parser.add_argument("--steps", type=int, default=4 * EVERY)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=("single", "double"), help="print one of the two as JSON")
    options = parser.parse_args()
    if options.precision:
        print(json.dumps(apart(options.steps, options.devices, options.seed, options.precision == "double")))
        return
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={options.devices}"
    for precision in ("single", "double"):
        words = [sys.executable, __file__, *sys.argv[1:], "--precision", precision]
        done = subprocess.run(
            words, env=os.environ | {"XLA_FLAGS": flags}, check=True, stdout=subprocess.PIPE, text=True
        )
        for name, each in json.loads(done.stdout.splitlines()[-1]).items():
            print(f"{precision}, {name}: {', '.join(f'{value:.1e}' for value in each)}", flush=True)


if __name__ == "__main__":
    main()
