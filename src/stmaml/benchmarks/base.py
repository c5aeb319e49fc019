"""An open benchmark: three sources of tasks, and all that is known about testing on them."""

import abc
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from jaxtyping import Array, Float, Shaped

from stmaml.benchmarks.sources import TaskSet, TaskSource, freeze, in_turn
from stmaml.errors import SettingError, at_least
from stmaml.tasks import Examples, Scaling

TABLE = "table"  # the name of a user's table among benchmarks
VAL_SEED = 1
TEST_SEED = 2
SEARCH_SEED = 1_936_026_993  # of validation tasks that choose settings: other ones than those that choose a checkpoint
ONLY_IN_TRAINING = {"min_shots": None, "most_shots": None, "pool": None, "both_ranges": False}
"""Settings that no test task depends on, and what they are in a test."""
TOLD_AS = {"test_years": "years", "val_years": "years"}
"""Settings that another flag changes at test time."""

BudgetName = Literal["smoke", "cpu", "paper"]
Floor = dict[str, Any]
"""The best possible scores: metrics (`mean`, `ci95`) under `metrics`, the same by family, and what they are: `name`."""
T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """How much work goes into each row of a table."""

    steps: int | None  # meta-steps; those of the recipe if not given
    seeds: int
    tasks: int  # test tasks
    tasks_per_batch: int | None = None  # tasks in a meta-step; those of the recipe if not given
    steps_per_call: int = 100  # a GPU waits less if it is asked less often
    samples: int = 20  # predictors sampled for each test task
    val_tasks: int | None = None  # validation tasks; those of the recipe if not given
    own_pace: bool = False
    """Whether presets beyond the paper are rows, each trained as long as its recipe says. They are many times larger,
    so smaller budgets leave them out unless they are named, and then train them as long as the other rows."""
    sweep: bool = False  # whether ST-MAML and its `best` preset are also tested with fewer and with more examples
    quick: bool = False  # whether programs are compiled, and baselines fitted, in a hurry rather than well


@dataclass(frozen=True)
class Budgets:
    """Three sizes of a table; these are for a benchmark that says nothing else."""

    smoke: Budget = Budget(steps=50, tasks_per_batch=8, seeds=1, tasks=50, quick=True)  # a few minutes, to see it work
    cpu: Budget = Budget(steps=4_000, seeds=3, tasks=1_000)  # under an hour on two cores
    paper: Budget = Budget(steps=None, seeds=3, tasks=1_000, steps_per_call=500, own_pace=True)
    """The full training, for a GPU."""

    def named(self, name: BudgetName) -> Budget:
        """One of them."""
        return {"smoke": self.smoke, "cpu": self.cpu, "paper": self.paper}[name]


def check_shots(shots: int, min_shots: int | None) -> None:
    """Refuses supports without an example, and a smallest one that is larger than the largest."""
    at_least(1, shots=shots)
    if min_shots is not None and not 0 <= min_shots <= shots:
        raise SettingError(f"--min-shots must lie between 0 and --shots ({shots}); got {min_shots}.")


class Shelf:
    """What was read from files: each thing once, for as long as a benchmark holds the shelf."""

    def __init__(self) -> None:
        self._things: dict[Hashable, Any] = {}

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """What stands under this name, made if it is not there yet."""
        if name not in self._things:
            self._things[name] = make()
        return self._things[name]


@runtime_checkable
class Aftercare(Protocol):
    """What a benchmark gives a trained run beside its weights, and how it judges what users will get."""

    def finish(self, learner: Any, folder: Path) -> None:
        """Writes into the run's folder what the learner still needs."""
        ...

    def judge(self, folder: Path, shots: int) -> Callable[..., dict[str, Any]]:
        """What makes scores of a prediction and its query, for predictions from so many labelled examples."""
        ...


class BenchmarkConfig(abc.ABC):
    """The settings of a benchmark: a frozen dataclass that opens it."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    budgets: ClassVar[Budgets] = Budgets()
    page: ClassVar[str] = ""
    """The page that `stmaml serve` shows its learners on (see serving/opening.py); none where it is empty."""

    @abc.abstractmethod
    def open(self, shelf: Shelf | None = None) -> "Benchmark":
        """The benchmark behind these settings; what stands on the shelf is not read again."""

    def searched(self) -> tuple["BenchmarkConfig", ...]:
        """The settings that a search for a method's settings looks at, all of which count alike: these alone."""
        return (self,)

    def at_test(self, name: str, **changes: Any) -> Any:
        """These settings with those changed that are given, for a test of what was trained under them."""
        known = {each.name for each in fields(self)}
        given = {key: value for key, value in changes.items() if value is not None}
        if unknown := [key for key in given if key not in known]:
            flag = TOLD_AS.get(unknown[0], unknown[0]).replace("_", "-")
            raise SettingError(f"{name} has no --{flag} to change at test time.")
        return replace(self, **{key: v for key, v in ONLY_IN_TRAINING.items() if key in known}, **given)


@dataclass(frozen=True)
class Showcase:
    """A task to be drawn: its support, and the inputs and true values of a curve through it."""

    name: str
    figure: str  # the kind of figure it is for: a name of reports.FIGURES
    labels: dict[str, Any]  # what the figure says about it, such as its family
    support: Examples
    x: Float[Array, "n *dx"]
    truth: Float[Array, "n dy"]
    axis: Float[Array, " n"]  # where on the figure's horizontal axis each input stands
    support_axis: Float[Array, " s"] | None = None  # the same for labelled examples, where inputs do not tell it
    rules: tuple[str, ...] = ()
    """The rules the support leaves open, where it leaves several: `x` then holds a set of one size for each."""
    limit: Callable[[], dict[str, Any]] | None = None
    """What can be known of it at best, where that is drawn too: `curves` at `x`, and a band from `low` to `high`."""


@dataclass(frozen=True)
class Sweep:
    """Numbers of labelled examples to test with, and how a figure shows them."""

    shots: tuple[int, ...]
    label: str = "labelled examples"
    figure: str = "shots"


@dataclass(frozen=True)
class Rows:
    """All training rows in one table, for models of everything at once."""

    settings: BenchmarkConfig  # those under which inputs tell most
    pooled: Callable[[int, int], tuple[Shaped[Any, "n dx"], Shaped[Any, " n"], Shaped[Any, " n"]]]
    """Inputs, targets and group of at most so many rows, drawn under a seed."""
    time_input: int | None = None  # the input that is a fraction of a period, if one is


def _no_floor() -> Floor | None:
    return None


@dataclass(frozen=True)
class Benchmark:
    """Training, validation and test tasks of one kind, and what a test of them needs."""

    settings: BenchmarkConfig  # what it was opened with
    train: TaskSource
    val: TaskSource
    test: TaskSource
    families: tuple[str, ...]  # names of what `TaskBatch.family` counts
    conditions: dict[str, Any]  # every setting that changes the test tasks, by name
    showcases: Callable[[], Sequence[Showcase]] = tuple  # tasks for figures, made when asked for
    floor: Callable[[], Floor | None] = _no_floor  # the best scores that any predictor could have, where they are known
    sweep: Sweep | None = None
    labelled: tuple[int, ...] = ()
    """Numbers of labelled examples that one test goes through; if none, there is one number, a condition as others."""
    test_tasks: int = 1000  # in a test, if not told otherwise
    test_groups: int = 0  # groups that the test source deals in turn, where several tasks are of one
    aftercare: Aftercare | None = None
    besides: tuple[dict[str, Any], ...] = ()
    """Further tests of each row of a table: what is asked for differently, such as the years trained on."""
    rows: Rows | None = None  # for baselines; none where they are not compared with
    notes: tuple[str, ...] = ()  # what a user should know of the files behind it, such as what was left out
    own_scaling: Scaling | None = None  # how methods that standardise are to scale, where the benchmark says so itself
    movable: TaskSource | None = None
    """The training source with what tells it from that of other settings in arrays, so that learners on both can train
    side by side; needed where a search looks at several settings."""
    shelf: Shelf = field(default_factory=Shelf)

    def vary(self, settings: BenchmarkConfig) -> "Benchmark":
        """The same under other settings; files that were read are not read again."""
        return self if settings == self.settings else settings.open(self.shelf)

    def val_set(self, num_tasks: int) -> TaskSet:
        """Frozen validation tasks."""
        return freeze(self.val, num_tasks, seed=VAL_SEED)

    def choosing_set(self, num_tasks: int) -> TaskSet:
        """Frozen validation tasks to choose settings by: others than `val_set`, by which training chooses a step."""
        return freeze(self.val, num_tasks, seed=SEARCH_SEED)

    def test_set(self, num_tasks: int) -> TaskSet:
        """Frozen test tasks."""
        if not self.test_groups:
            return freeze(self.test, num_tasks, seed=TEST_SEED)
        return in_turn(self.test, self.test_groups, num_tasks, seed=TEST_SEED)
