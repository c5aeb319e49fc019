"""Ambiguous faces: learn a rule of two attributes from few pictures, where three rules fit (PLATIPUS's CelebA tasks).

A training task has pictures with both of two attributes against pictures with neither. In the support of a test task
they have all of three attributes, or none: which two of them decide is left open, and its query holds three sets, one
for each pair of the three.
"""

import abc
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Int, Int32, Key, PRNGKeyArray, UInt8

from stmaml.benchmarks.altered import mirrored
from stmaml.benchmarks.base import Benchmark, BenchmarkConfig, Budget, Budgets, Shelf, Showcase
from stmaml.benchmarks.sources import freeze
from stmaml.data.faces import ATTRIBUTES_FILE, Faces, read_faces
from stmaml.data.folders import data_folder
from stmaml.data.picture_files import ARCHIVES
from stmaml.draws import distinct_set
from stmaml.errors import SourceError, at_least
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec

TRAIN_ATTRIBUTES = (
    *("Oval_Face", "Attractive", "Mustache", "Male", "Pointy_Nose", "Bushy_Eyebrows", "Blond_Hair", "Rosy_Cheeks"),
    *("Receding_Hairline", "Eyeglasses", "Goatee", "Brown_Hair", "Narrow_Eyes", "Chubby", "Big_Lips", "Wavy_Hair"),
    *("Bags_Under_Eyes", "Arched_Eyebrows", "Wearing_Earrings", "High_Cheekbones", "Black_Hair", "Bangs"),
    *("Wearing_Lipstick", "Sideburns", "Bald"),
)
VAL_ATTRIBUTES = ("Wearing_Necklace", "Smiling", "Pale_Skin", "Wearing_Necktie", "Big_Nose")
TEST_ATTRIBUTES = (
    *("Straight_Hair", "5_o_Clock_Shadow", "Wearing_Hat", "Gray_Hair", "Heavy_Makeup", "Young", "Blurry"),
    *("Double_Chin", "Mouth_Slightly_Open", "No_Beard"),
)
SPLIT = (TRAIN_ATTRIBUTES, VAL_ATTRIBUTES, TEST_ATTRIBUTES)
"""The attributes of PLATIPUS's training, validation and test tasks."""
PAIRS = ((0, 1), (0, 2), (1, 2))  # the rules inside three attributes, by their places
TRIPLET_FACTOR = 3
"""A triplet is used if it has this many times the support's pictures on each side, as in PLATIPUS's generator."""
NUM_SHOWCASES = 3
SHOWCASE_SEED = 7


@dataclass(frozen=True)
class Config(BenchmarkConfig):
    """Settings of the ambiguous faces benchmark."""

    data: str | None = None
    """Folder or tar file in CelebA's layout, or a file of saved faces (.npz); `faces` in the folder STMAML_DATA names
    if not given."""
    shots: int = 5
    """Pictures on each side of a support set: with the attributes, and without any of them."""
    query_per_class: int = 5
    """Pictures on each side of a query set, of which a test task has three."""
    image_size: int = 84
    """Rows and columns the pictures are scaled to, after a crop to their middle square."""
    mirror: bool = False
    """Turn each picture of a training task left to right, or not, at random."""
    budgets = Budgets(
        smoke=Budget(steps=2, tasks_per_batch=2, seeds=1, tasks=2, samples=4, val_tasks=4),
        cpu=Budget(steps=200, tasks_per_batch=4, seeds=1, tasks=100, samples=40, steps_per_call=20, val_tasks=20),
        paper=Budget(steps=None, seeds=1, tasks=1_000, samples=100, own_pace=True),
    )

    def __post_init__(self):
        at_least(1, shots=self.shots, query_per_class=self.query_per_class, image_size=self.image_size)

    def open(self, shelf: Shelf | None = None) -> Benchmark:
        """Pairs of training and of validation attributes, triplets of test attributes, each on its own pictures."""
        shelf = shelf or Shelf()
        parts, notes = self.read(shelf)
        (train, has_train), (val, has_val), (test, has_test) = parts
        sizes = replace(self, data=None)  # where the files lie makes no other program
        tasks = ambiguous(test, has_test, sizes)
        return Benchmark(
            settings=self,
            train=pair_tasks(train, has_train, sizes, "training"),
            val=pair_tasks(val, has_val, sizes, "validation", balanced=True),
            test=tasks,
            families=("faces",),
            conditions={"pictures": len(has_test), "shots": self.shots, "query": self.query_per_class},
            showcases=lambda: tuple(_showcases(tasks)),
            notes=notes,
            shelf=shelf,
        )

    def read(self, shelf: Shelf) -> tuple[tuple["Part", ...], tuple[str, ...]]:
        """Pictures and attributes of the training, validation and test parts, and what to know about the files."""
        path = locate(data_folder(self.data, "faces")).resolve()
        return shelf.once(("faces", path, self.image_size), lambda: _read(path, self.image_size))


Has = Bool[np.ndarray, "n a"]  # which attributes each picture has
Part = tuple["FaceAlbum", Has]


def _read(path: Path, image_size: int) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Pictures and attributes of each part, on the device once, and what to know about the files."""
    faces = read_faces(path, image_size)
    _check_names(faces.names, path)
    return tuple(_album(faces, part) for part in range(len(SPLIT))), faces.notes


def locate(path: Path) -> Path:
    """The folder itself, or the one archive or saved file in it where the layout is not there but packed."""
    if not path.is_dir() or (path / ATTRIBUTES_FILE).exists():
        return path
    packed = sorted(p for p in path.iterdir() if p.name.endswith((*ARCHIVES, ".npz")))
    return packed[0] if len(packed) == 1 else path


def _check_names(names: tuple[str, ...], path: Path) -> None:
    known = [name for part in SPLIT for name in part]
    if missing := [name for name in known if name not in names]:
        raise SourceError(f"the attributes of {path} lack '{missing[0]}'; expected the 40 of CelebA. Replace its list.")
    if unknown := [name for name in names if name not in known]:
        raise SourceError(
            f"{path} has an unknown attribute '{unknown[0]}'; expected the 40 of CelebA. Correct its list."
        )


def _album(faces: Faces, part: int) -> Part:
    """A part's pictures and which of the part's own attributes, and of no others, each has."""
    own = faces.partition == part
    places = [faces.names.index(name) for name in SPLIT[part]]
    return FaceAlbum(jnp.asarray(faces.pictures[own]), SPLIT[part]), faces.attributes[own][:, places]


class FaceAlbum(eqx.Module):
    """The pictures of one part, as bytes on the device."""

    pictures: UInt8[Array, "n h w 3"]
    attributes: tuple[str, ...] = eqx.field(static=True)  # names of the part's own attributes

    @property
    def spec(self) -> TaskSpec:
        """A picture in colour, two classes."""
        return TaskSpec(x_shape=self.pictures.shape[1:], y_size=2, target="class")

    @property
    def digest(self) -> str:
        """Stands for all pictures."""
        return hashlib.blake2b(np.ascontiguousarray(self.pictures).data, digest_size=16).hexdigest()

    def expand(self, drawn: "Drawn") -> TaskBatch:
        """Tasks with their pictures; in each set those with the attributes come first."""
        arrays = jax.tree.map(jnp.asarray, drawn)
        sets = (jax.vmap(self._examples)(rows, arrays.label) for rows in (arrays.support[:, None], arrays.query))
        return TaskBatch(Task(*sets), arrays.family, rules=arrays.rules)

    def _examples(self, rows: Int[Array, "r 2 k"], label: Int[Array, ""]) -> Examples:
        """All sets, one after the other."""
        x = self.pictures[jnp.flip(rows, axis=1).reshape(-1)].astype(float) / 255
        sides = jnp.stack([label, 1 - label])[None, :, None]
        return Examples.of(x, jnp.broadcast_to(sides, rows.shape).reshape(-1))


class Candidates(eqx.Module):
    """For each rule the pictures with all its attributes (side 1) and those with none (side 0).

    All lists stand in one array, one after the other, sorted. An entry is the picture's row plus the number of its
    list times the number of pictures, so that the whole array is sorted and a picture is found by bisection."""

    entries: Int32[Array, " t"]
    start: Int32[Array, " l"]  # where each list begins, and at last where they end; list 2 r + s is side s of rule r
    num_pictures: int = eqx.field(static=True)
    rules: tuple[tuple[int, ...], ...] = eqx.field(static=True)  # the attributes of each rule, by their places

    def draw(
        self, rule: Int[Array, ""], count: int, *, without: Int[Array, "2 e"] | None = None, key: PRNGKeyArray
    ) -> Int[Array, "2 count"]:
        """Rows of `count` different pictures of each side in random order, none of them in `without`.

        Rows in `without` must be in the lists they are kept out of."""
        left_out = jnp.zeros((2, 0), dtype=int) if without is None else without
        return jax.vmap(partial(self._draw_side, count))(2 * rule + jnp.arange(2), left_out, jr.split(key))

    def _draw_side(
        self, count: int, number: Int[Array, ""], without: Int[Array, " e"], key: PRNGKeyArray
    ) -> Int[Array, " count"]:
        first, base = self.start[number], number * self.num_pictures
        size = self.start[number + 1] - first
        taken = jnp.sort(jnp.searchsorted(self.entries, base + without) - first)
        place = distinct(size - without.shape[0], count, key=key)
        for i in range(without.shape[0]):  # numbers of those left: each one taken, from the lowest on, moves the rest
            place = place + (place >= taken[i])
        return self.entries[first + place] - base


def distinct(total: Int[Array, ""], count: int, *, key: PRNGKeyArray) -> Int[Array, " count"]:
    """`count` different numbers below `total` (no fewer), in random order; all choices are equally likely."""
    draw_key, order_key = jr.split(key)
    # As wide as integers are by default: in double precision other bits are drawn, and frozen sets are of those.
    return jr.permutation(order_key, distinct_set(total.astype(int), count, key=draw_key))


def candidates(has: Has, rules: Sequence[tuple[int, ...]]) -> Candidates:
    """The lists of these rules."""
    lists, count = [rows for rule in rules for rows in _sides(has, rule)], len(has)
    entries = np.concatenate([rows + number * count for number, rows in enumerate(lists)])
    start = np.concatenate([[0], np.cumsum([len(rows) for rows in lists])])
    if len(lists) * count > np.iinfo(np.int32).max:
        raise SourceError(f"{count:,} pictures under {len(rules)} rules are more than this benchmark can index.")
    return Candidates(jnp.asarray(entries, dtype=jnp.int32), jnp.asarray(start, dtype=jnp.int32), count, tuple(rules))


def _sides(has: Has, rule: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of pictures with none of the rule's attributes, and with all."""
    chosen = has[:, list(rule)]
    return np.flatnonzero(~chosen.any(1)), np.flatnonzero(chosen.all(1))


def _rules(has: Has, size: int, fewest: int) -> list[tuple[int, ...]]:
    """All choices of `size` attributes with at least `fewest` pictures on each side."""
    every = combinations(range(has.shape[1]), size)
    return [rule for rule in every if min(len(rows) for rows in _sides(has, rule)) >= fewest]


class Drawn(eqx.Module):
    """Tasks as rows of pictures: on side 0 without any attribute of the rule, on side 1 with all."""

    support: Int[Array, "m 2 k"]
    query: Int[Array, "m r 2 q"]  # one set for each rule
    label: Int[Array, " m"]  # what side 1 is called in this task, 0 or 1; side 0 is called the other
    family: Int[Array, " m"]
    rules: Int[Array, "m r"] | None = None  # the rules of ambiguous tasks, by their places among the pairs


class _FaceTasks(eqx.Module):
    """Tasks drawn as rows of an album, which become pictures when they are needed."""

    album: FaceAlbum

    @property
    def spec(self) -> TaskSpec:
        """A picture in colour, two classes."""
        return self.album.spec

    @property
    def content_digest(self) -> str:
        """Stands for the pictures."""
        return self.album.digest

    def sample(self, num_tasks: int, *, key: PRNGKeyArray) -> TaskBatch:
        """Tasks with fresh rules, pictures and labels."""
        return self.expand(self.draw(num_tasks, key=key))

    @abc.abstractmethod
    def draw(self, num_tasks: int, *, key: PRNGKeyArray) -> Drawn:
        """The same tasks as rows of pictures."""

    def expand(self, drawn: Drawn) -> TaskBatch:
        """The tasks themselves."""
        return self.album.expand(drawn)


class PairTasks(_FaceTasks):
    """Tasks with one rule: two attributes, both against neither."""

    pairs: Candidates
    settings: Config = eqx.field(static=True)
    balanced: bool = eqx.field(static=True, default=False)
    """For validation: every rule once before any comes twice, instead of at random, and pictures as they are."""

    def sample(self, num_tasks: int, *, key: PRNGKeyArray) -> TaskBatch:
        """Tasks with fresh rules, pictures and labels."""
        tasks = super().sample(num_tasks, key=key)
        if self.balanced or not self.settings.mirror:
            return tasks
        return mirrored(tasks, key=jr.fold_in(key, 2))  # `draw` splits the key in two, which are its keys 0 and 1

    def draw(self, num_tasks: int, *, key: PRNGKeyArray) -> Drawn:
        """The same tasks as rows of pictures."""
        rule_key, task_key = jr.split(key)
        count = len(self.pairs.rules)
        in_turn = self.balanced
        rule = deal(count, num_tasks, key=rule_key) if in_turn else jr.randint(rule_key, (num_tasks,), 0, count)
        rows, label = jax.vmap(self._draw_task)(rule, _keys(task_key, num_tasks))
        shots = self.settings.shots
        return Drawn(rows[..., :shots], rows[:, None, :, shots:], label, jnp.zeros(num_tasks, dtype=int))

    def _draw_task(self, rule: Int[Array, ""], key: PRNGKeyArray) -> tuple[Int[Array, "2 k"], Int[Array, ""]]:
        label_key, row_key = jr.split(key)
        rows = self.pairs.draw(rule, self.settings.shots + self.settings.query_per_class, key=row_key)
        return rows, jr.randint(label_key, (), 0, 2)


class AmbiguousTasks(_FaceTasks):
    """Tasks whose support has three attributes, all against none, and three query sets, one for each pair of them."""

    triplets: Candidates
    pairs: Candidates
    inside: Int[Array, "t 3"]  # the pairs in each triplet, by their places among `pairs`
    settings: Config = eqx.field(static=True)

    def draw(self, num_tasks: int, *, key: PRNGKeyArray) -> Drawn:
        """Every triplet once before any comes twice; the first tasks do not depend on how many are asked for."""
        rule_key, task_key = jr.split(key)
        triplet = deal(len(self.triplets.rules), num_tasks, key=rule_key)
        rules = self.inside[triplet]
        support, query, label = jax.vmap(self._draw_task)(triplet, rules, _keys(task_key, num_tasks))
        return Drawn(support, query, label, jnp.zeros(num_tasks, dtype=int), rules)

    def _draw_task(
        self, triplet: Int[Array, ""], rules: Int[Array, " r"], key: PRNGKeyArray
    ) -> tuple[Int[Array, "2 k"], Int[Array, "r 2 q"], Int[Array, ""]]:
        label_key, support_key, query_key = jr.split(key, 3)
        support = self.triplets.draw(triplet, self.settings.shots, key=support_key)

        def ask(rule: Int[Array, ""], key: PRNGKeyArray) -> Int[Array, "2 q"]:
            # A face with all three attributes has any two: the support is in the lists, and must not be asked about.
            return self.pairs.draw(rule, self.settings.query_per_class, without=support, key=key)

        query = jax.vmap(ask)(rules, jr.split(query_key, len(PAIRS)))
        return support, query, jr.randint(label_key, (), 0, 2)


def _keys(key: PRNGKeyArray, count: int) -> Key[Array, " m"]:
    """A key for each task, whatever their number."""
    return jax.vmap(lambda i: jr.fold_in(key, i))(jnp.arange(count))


def deal(count: int, num_tasks: int, *, key: PRNGKeyArray) -> Int[Array, " m"]:
    """Numbers below `count` in a random order, over and over."""
    return jr.permutation(key, count)[jnp.arange(num_tasks) % count]


def pair_tasks(album: FaceAlbum, has: Has, settings: Config, part: str, *, balanced: bool = False) -> PairTasks:
    """The tasks of all pairs of attributes that have pictures enough on both sides."""
    needed = settings.shots + settings.query_per_class
    if not (rules := _rules(has, 2, needed)):
        raise SourceError(
            f"no two {part} attributes have {needed} {part} pictures with both and {needed} with neither. Give more "
            "pictures, or lower --shots or --query-per-class."
        )
    return PairTasks(album, candidates(has, rules), settings, balanced)


def ambiguous(album: FaceAlbum, has: Has, settings: Config, part: str = "test") -> AmbiguousTasks:
    """The tasks of all triplets of attributes that have pictures enough on both sides."""
    needed = max(TRIPLET_FACTOR * settings.shots, settings.shots + settings.query_per_class)
    if not (rules := _rules(has, 3, needed)):
        raise SourceError(
            f"no three {part} attributes have {needed} {part} pictures with all and {needed} with none of them. Give "
            "more pictures, or lower --shots or --query-per-class."
        )
    inside = [[tuple(rule[place] for place in pair) for pair in PAIRS] for rule in rules]
    pairs = sorted({pair for three in inside for pair in three})
    places = jnp.array([[pairs.index(pair) for pair in three] for three in inside])
    return AmbiguousTasks(album, candidates(has, rules), candidates(has, pairs), places, settings)


def _showcases(source: AmbiguousTasks) -> Iterator[Showcase]:
    """Ambiguous tasks to be drawn, with their three rules in words."""
    batch = freeze(source, NUM_SHOWCASES, seed=SHOWCASE_SEED).batch
    for index, places in enumerate(np.asarray(batch.rules)):
        task = jax.tree.map(lambda leaf, index=index: leaf[index], batch.tasks)
        pairs = [source.pairs.rules[place] for place in places]
        yield Showcase(
            name=f"rules-{index + 1}",
            figure="rules",
            labels={"number": index + 1},
            support=task.support,
            x=task.query.x,
            truth=task.query.y[:, None].astype(float),
            axis=jnp.arange(task.query.y.shape[0], dtype=float),
            rules=tuple(" and ".join(_words(source.album.attributes[place]) for place in pair) for pair in pairs),
        )


def _words(attribute: str) -> str:
    return attribute.replace("_", " ").lower().replace("5 o clock", "5 o'clock")
