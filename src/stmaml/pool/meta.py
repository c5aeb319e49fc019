"""A meta-learned member of a pool: a method on top of a linear model, which training may only improve on.

At step 0 the learner is the linear mixed model of its rows, fitted in closed form; the network's outputs count for
nothing. Training moves the network alone, and goes as far as it helps groups that were not learnt from."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from stmaml.border.json_text import parse_json
from stmaml.border.typed import from_dict, need
from stmaml.errors import SettingError
from stmaml.methods import METHODS
from stmaml.pool.base import Arrays, Draw, Fitted, Forecast, GroupedRows, Tasks
from stmaml.pool.meta_answers import Weights, forecast
from stmaml.pool.meta_heldout import held_out
from stmaml.pool.meta_learner import Plan
from stmaml.pool.meta_start import linear_start
from stmaml.pool.meta_tasks import Listed
from stmaml.pool.meta_training import Trained, Training, first_weights
from stmaml.pool.meta_wide import Wide
from stmaml.progress import remark

MIN_GROUPS = 4
MAX_CLASSES = 50
FOR_CLASSES = ("protonet",)
HELPERS = 3
SMALL = 5000  # rows: a table with fewer is learnt from within seconds
HUGE = 50_000  # rows: a table with as many gets larger networks
LONG = 3.0  # minutes: a huge table for which a user grants as many gets the learners of an accelerator, but smaller
NEARLY_ALL = 0.8
"""Of the groups of a huge table: what has learnt from so many answers for all, and trains for twice as many steps."""
NAMES = tuple(field.name for field in fields(Weights))


@dataclass(frozen=True)
class FittedMeta:
    """A trained learner, and how many of its training steps were kept."""

    plan: Plan
    weights: Weights
    """Of one learner, on a leading axis."""
    chosen_step: int
    steps: Int[np.ndarray, " l"]
    """At which training was looked at."""
    curve: Float[np.ndarray, " l"]
    """The score of held-out groups at each look: CRPS in spreads of the target, or log-loss."""

    @property
    def last_step(self) -> int:
        """Where training ended."""
        return int(self.steps[-1])

    @property
    def sentence(self) -> str:
        """Which weights were kept, and why."""
        name, last = self.plan.method, f"{self.last_step:,}"
        if self.chosen_step == self.last_step:
            return f"{name}: weights of the last step, {last}, kept"
        kept = f"step {self.chosen_step:,} of {last}" if self.chosen_step else f"step 0 of {last}, its linear model,"
        return f"{name}: weights of {kept} kept; later training did not help held-out groups"

    def predict(self, tasks: Tasks) -> Forecast:
        """Mean and variances over sampled predictors."""
        return forecast(self.plan, self.weights, np.zeros(len(tasks), dtype=int), tasks, trained=self.chosen_step > 0)

    def state(self) -> Arrays:
        """Weights, and settings as JSON in bytes."""
        about = json.dumps({"plan": asdict(self.plan), "chosen_step": self.chosen_step}).encode()
        found = {"settings": np.frombuffer(about, dtype=np.uint8), "steps": self.steps, "curve": self.curve}
        return {**found, **{name: np.asarray(vars(self.weights)[name]) for name in NAMES}}


@dataclass(frozen=True)
class Meta:
    """A method of METHODS as a member of a pool."""

    method: str = "st-maml"
    minutes: float | None = None
    """Most of training, by the clock; if not given, by the size of the table."""
    steps: int | None = None
    """Most of training; if not given, by the size of the table."""
    wide: Wide | None = None
    """All groups and rows of a large table: what is trained draws tasks from them."""

    def __post_init__(self):
        if self.method not in METHODS:
            raise SettingError(f"there is no method '{self.method}'; choose one of: {', '.join(METHODS)}.")

    @property
    def name(self) -> str:
        """The method's."""
        return self.method

    def suits(self, rows: GroupedRows) -> bool:
        """Where there are a few groups; some methods are for classes alone."""
        kind = rows.num_classes > 0 or self.method not in FOR_CLASSES
        return kind and rows.num_groups >= MIN_GROUPS and rows.num_classes <= MAX_CLASSES and rows.x.shape[1] > 0

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """Learners of all parts, trained side by side; the number of steps is chosen once, on held-out groups."""
        plan, learning = self.plan(rows, draw), [np.asarray(part, dtype=int) for part in parts]
        once = _once_is_enough(rows, learning)
        learning = learning[:1] if once else learning
        judged = held_out(rows, learning, draw)
        if judged is None:  # each part has all groups: helpers that have not are trained beside, to choose the step
            every = np.arange(rows.num_groups)
            learning += [every[every % HELPERS != helper] for helper in range(HELPERS)]
            judged = held_out(rows, learning, draw)
        if judged is None:
            raise SettingError(f"{self.method} needs several groups to learn across; the table has {rows.num_groups}.")
        minutes = _minutes(rows) if self.minutes is None else self.minutes
        trained = replace(start_training(plan, rows, learning, draw), wide=self.wide).run(judged, minutes)
        fitted = [_one(plan, trained, 0 if once else number) for number in range(len(parts))]
        remark(fitted[0].sentence)
        return list(fitted)

    def plan(self, rows: GroupedRows, draw: Draw) -> Plan:
        """Sizes and training by the number of rows and groups."""
        size, groups = len(rows.y), rows.num_groups
        large, huge = size >= SMALL, size >= HUGE
        steps = (4000 if huge else 2000) if large else 1000
        plan = Plan(
            self.method,
            num_inputs=-(-rows.x.shape[1] // 4) * 4,
            num_classes=rows.num_classes,
            shots=draw.shots,
            query_size=draw.max_query,
            width=(128 if huge else 64) if large else 32,
            tasks=16 if large else 8,
            steps=self.steps or steps,
            every=100 if large else 50,
            decay=0.01 if groups >= 100 else 0.1,
            seed=draw.seed,
        )
        if not huge or (on_cpu() and (self.minutes is None or self.minutes < LONG)):
            return plan
        return _looking(replace(plan, steps=self.steps or 40_000), on_cpu=on_cpu())

    def restore(self, state: Arrays) -> FittedMeta:
        """The learner with its weights."""
        about = parse_json(state["settings"].tobytes())
        plan, chosen = (
            from_dict(Plan, need(dict, about["plan"], "plan")),
            need(int, about["chosen_step"], "chosen_step"),
        )
        weights = Weights(*jax.device_put([state[name] for name in NAMES]))
        return FittedMeta(plan, weights, chosen, state["steps"], state["curve"])


def start_training(plan: Plan, rows: GroupedRows, parts: Sequence[Int[np.ndarray, " _"]], draw: Draw) -> Training:
    """Learners that are the linear models of their parts."""
    listed = Listed.of(rows)
    usable = tuple(listed.usable(part) for part in parts)
    if not all(map(len, usable)):
        raise SettingError("each part needs a group with a known target; give it more groups.")
    starts = [_linear(plan, rows, part) for part in usable]
    linear = (jnp.asarray(np.stack(each)) for each in zip(*starts, strict=True))
    vectors = np.tile(np.asarray(first_weights(plan)), (len(usable), 1))  # the same for every part
    return Training(plan, rows, usable, draw, Weights(jnp.asarray(vectors), *linear))


def _linear(plan: Plan, rows: GroupedRows, part: Int[np.ndarray, " k"]) -> tuple[np.ndarray, ...]:
    mine = np.flatnonzero(np.isin(rows.group, part) & np.isfinite(rows.y))
    y = np.eye(plan.num_classes)[rows.y[mine].astype(int)] if plan.num_classes else rows.y[mine, None]
    return linear_start(rows.x[mine], y, rows.group[mine]).padded(plan.num_inputs).arrays()


def _one(plan: Plan, trained: Trained, number: int) -> FittedMeta:
    steps, weights = np.array(trained.looks.steps), trained.weights.at(np.array([number]))
    return FittedMeta(plan, weights, trained.chosen_step, steps, trained.looks.curve)


def _looking(plan: Plan, *, on_cpu: bool) -> Plan:
    """For many rows, and an accelerator or time: rows that look labelled ones up, Muon, and weights averaged over more
    steps, as a rate that falls would do."""
    looking = replace(plan, waves=9, optimizer="muon", warmup=300, patience=8, decay=0.01)
    if on_cpu:
        return replace(looking, lookup=128, rate=5e-3, tasks=32, averaged=0.995)
    return replace(looking, lookup=256, rate=4e-3, width=256, tasks=96, every=250, averaged=0.998)


def _once_is_enough(rows: GroupedRows, parts: Sequence[Int[np.ndarray, " _"]]) -> bool:
    """Whether a learner of nearly all groups of a huge table may answer in place of one of all."""
    if len(rows.y) < HUGE or len(parts) != 2:
        return False
    return NEARLY_ALL * len(parts[1]) <= len(parts[0]) < len(parts[1])


def on_cpu() -> bool:
    """Whether there is no accelerator."""
    return jax.default_backend() == "cpu"


def _minutes(rows: GroupedRows) -> float:
    """Most of training by the clock: for small tables as long as it takes, which is seconds on a machine of one's own;
    for larger ones two minutes, up to ten for those of hundreds of thousands of rows."""
    return float(np.inf) if len(rows.y) < SMALL else float(np.clip(len(rows.y) / 20_000, 2, 10))
