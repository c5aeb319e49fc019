"""Several devices: which ones, how arrays lie on them, and a sentence where the work cannot be shared evenly.

Either the tasks of a meta-batch are shared and the gradients averaged, or the learners trained side by side are shared
and nothing is. Tasks are drawn from the same keys as on one device, so the results differ by rounding alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from stmaml.errors import SettingError

AXIS = "devices"
ALL = "all"
T = TypeVar("T", bound=PyTree)


@dataclass(frozen=True)
class Layout:
    """Devices, and what they share. Without a mesh it is one device, for which no program or array changes."""

    mesh: Mesh | None = None
    shares: Literal["tasks", "learners"] = "tasks"

    @property
    def count(self) -> int:
        """How many devices there are."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def of_one_learner(self) -> "Layout":
        """The devices that share the tasks of one learner."""
        return self if self.shares == "tasks" else ONE_DEVICE

    def tasks_each(self, tasks: int) -> int:
        """How many of the tasks of a step one device has."""
        return tasks // self.of_one_learner.count

    def everywhere(self, tree: T) -> T:
        """The tree with its arrays whole on each device."""
        return self._placed(tree, PartitionSpec(), _put)

    def parted(self, tree: T, axis: int) -> T:
        """The tree with an axis of its arrays, that of the tasks, parted among the devices that share them."""
        return self._placed(tree, self._tasks_on(axis), _put)

    def drawn(self, tree: T, axis: int) -> T:
        """The same inside a compiled program: each device draws its own tasks."""
        return self._placed(tree, self._tasks_on(axis), jax.lax.with_sharding_constraint)

    def whole(self, tree: T) -> T:
        """The tree inside a compiled program, gathered on each device."""
        return self._placed(tree, PartitionSpec(), jax.lax.with_sharding_constraint)

    def here(self, tree: T) -> T:
        """A tree whose arrays are whole on each device as one of this process alone."""
        return tree if self.mesh is None else _arrays(lambda leaf: jnp.asarray(np.asarray(leaf)), tree)

    def mean(self, mean_of: Callable[..., T], learner: Any, *by_task: PyTree) -> T:
        """What `mean_of` gives for the learner and all tasks: the mean of that of each device's tasks."""
        if self.mesh is None:
            return mean_of(learner, *by_task)

        def own(learner: Any, *parts: PyTree) -> T:
            return jax.lax.pmean(mean_of(learner, *parts), AXIS)

        return _mapped(own, self.mesh, learner, by_task, PartitionSpec())

    def each(self, run: Callable[..., T], source: Any, *by_learner: PyTree) -> T:
        """What `run` gives for a source and learners, from the learners of each device."""
        if self.mesh is None or self.shares == "tasks":
            return run(source, *by_learner)
        return self.whole(_mapped(run, self.mesh, source, by_learner, PartitionSpec(AXIS)))

    def _tasks_on(self, axis: int) -> PartitionSpec:
        return PartitionSpec(*(None,) * axis, AXIS) if self.shares == "tasks" else PartitionSpec()

    def _placed(self, tree: T, spec: PartitionSpec, place: Callable[[Any, NamedSharding], Any]) -> T:
        if self.mesh is None:
            return tree
        sharding = NamedSharding(self.mesh, spec)
        return _arrays(lambda leaf: place(leaf, sharding), tree)


ONE_DEVICE = Layout()


def _arrays(change: Callable[[Any], Any], tree: T) -> T:
    return jax.tree.map(lambda leaf: change(leaf) if eqx.is_array(leaf) else leaf, tree)


def _mapped(own: Callable[..., T], mesh: Mesh, common: Any, parted: tuple[PyTree, ...], gives: PartitionSpec) -> T:
    """What each device makes of all of `common` and of its part of the rest."""
    arrays, rest = eqx.partition(common, eqx.is_array)
    # Not checked: loops inside methods begin with constants, which JAX takes for equal on all devices.
    run = jax.shard_map(
        lambda arrays, *parts: own(eqx.combine(arrays, rest), *parts),
        mesh=mesh,
        in_specs=(PartitionSpec(), *(PartitionSpec(AXIS),) * len(parted)),
        out_specs=gives,
        check_vma=False,
    )
    return run(arrays, *parted)


def _put(leaf: Any, sharding: NamedSharding) -> Any:
    """An array on the devices of a sharding, also on those of other processes, which hold the same array."""
    if sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key):
        return jr.wrap_key_data(_put(jr.key_data(leaf), sharding), impl=jr.key_impl(leaf))
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])


def layout_for(wanted: str | None, *, tasks: int, learners: int = 1) -> Layout:
    """How the devices asked for share the work.

    `wanted` is a number of devices, or `all`; if not given: one, or all where there are several processes."""
    groups = _by_process()
    available = sum(map(len, groups))
    count = _count(wanted or (ALL if len(groups) > 1 else "1"), available, len(groups))
    if count == 1:
        return ONE_DEVICE
    chosen = [device for group in groups for device in group[: count // len(groups)]]
    if learners > 1 and learners % count == 0:
        return Layout(Mesh(np.array(chosen), (AXIS,)), "learners")
    if tasks % count:
        raise _uneven(count, tasks, learners, available, len(groups))
    return Layout(Mesh(np.array(chosen), (AXIS,)), "tasks")


def _by_process() -> list[list[Any]]:
    """The devices of each process; as many of each as the process that has fewest."""
    groups = [[d for d in jax.devices() if d.process_index == i] for i in range(jax.process_count())]
    fewest = min(map(len, groups))
    return [group[:fewest] for group in groups]


def _count(wanted: str, available: int, processes: int) -> int:
    if wanted == ALL:
        return available
    if not wanted.isdecimal() or int(wanted) < 1:
        raise SettingError(f"--devices must be a number above 0 or 'all'; got '{wanted}'.")
    if int(wanted) % processes:
        raise SettingError(f"--devices must be a multiple of the {processes} processes; got {wanted}.")
    if int(wanted) > available:
        kind = jax.devices()[0].platform
        trial = f" A CPU can pose as {wanted}: set XLA_FLAGS=--xla_force_host_platform_device_count={wanted}."
        are = f"{'is' if available == 1 else 'are'} {available} ({kind})"
        raise SettingError(f"--devices {wanted} asks for too many: there {are}.{trial * (kind == 'cpu')}")
    return int(wanted)


def _uneven(count: int, tasks: int, learners: int, available: int, processes: int) -> SettingError:
    fit = [n for n in range(processes, available + 1, processes) if tasks % n == 0 or learners % n == 0]
    cure = f"Choose --devices {' or '.join(map(str, fit))}" if fit else "Choose another --tasks-per-batch"
    seeds = f", nor the {learners} seeds" if learners > 1 else ""
    other = f", or --tasks-per-batch {tasks - tasks % count or count}"
    return SettingError(f"{count} devices cannot share the {tasks} tasks of a meta-batch{seeds} evenly. {cure}{other}.")
