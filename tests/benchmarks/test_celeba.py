"""Ambiguous faces: who is in which set, under which label, and how evenly all are drawn."""

import os
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import PRNGKeyArray
from scipy.stats import chisquare

from stmaml.benchmarks import BENCHMARKS, celeba
from stmaml.benchmarks.celeba import PAIRS, SPLIT, Config, candidates, distinct
from stmaml.benchmarks.sources import DrawingSource, check_batch, freeze
from stmaml.data.faces import read_faces
from stmaml.errors import SettingError, SourceError
from tests.face_files import NAMES, FaceFiles, faces, number_of
from tests.picture_files import turned

PARTS = (90, 60, 90)
SETTINGS = Config(shots=2, query_per_class=3, image_size=16)
NUM_TASKS = 200


@pytest.fixture(scope="module")
def files() -> FaceFiles:
    return faces(PARTS)


@pytest.fixture(scope="module")
def folder(files, tmp_path_factory) -> Path:
    return files.write(tmp_path_factory.mktemp("faces"))


@pytest.fixture(scope="module")
def benchmark(folder, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STMAML_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield replace(SETTINGS, data=str(folder)).open()


@pytest.fixture(scope="module")
def drawn(benchmark) -> dict[str, celeba.Drawn]:
    """Tasks of each part, as rows of its pictures."""
    parts = {"train": benchmark.train, "val": benchmark.val, "test": benchmark.test}
    return {name: _sampled(source) for name, source in parts.items()}


def _sampled(source) -> celeba.Drawn:
    return jax.tree.map(np.asarray, draw(source, NUM_TASKS, jr.key(3)))


@eqx.filter_jit
def draw(source, num_tasks: int, key: PRNGKeyArray) -> celeba.Drawn:
    return source.draw(num_tasks, key=key)


def has(files: FaceFiles, part: int) -> np.ndarray:
    """Which of the part's own attributes its pictures have."""
    return files.attributes[files.partition == part][:, [NAMES.index(name) for name in SPLIT[part]]] == 1


def shared_by(has: np.ndarray, rows: np.ndarray) -> set[int]:
    """The attributes all these pictures have."""
    return set(np.flatnonzero(has[rows].all(0)).tolist())


def lacked_by(has: np.ndarray, rows: np.ndarray) -> set[int]:
    """The attributes none of these pictures has."""
    return set(np.flatnonzero(~has[rows].any(0)).tolist())


def test_the_attributes_are_split_into_25_5_and_10_of_celebas_40():
    assert [len(names) for names in SPLIT] == [25, 5, 10]
    assert len({name for names in SPLIT for name in names}) == 40
    assert BENCHMARKS["celeba"] is Config


def test_distinct_numbers_come_in_every_order_equally_often():
    draw = jax.vmap(lambda key: distinct(jnp.asarray(5), 3, key=key))
    found = np.asarray(draw(jr.split(jr.key(0), 6000))).tolist()
    counts = [found.count(list(order)) for order in permutations(range(5), 3)]
    assert sum(counts) == 6000, "always three different numbers below five"
    assert chisquare(counts).pvalue > 1e-3


def test_all_numbers_may_be_asked_for(key):
    assert sorted(distinct(jnp.asarray(4), 4, key=key).tolist()) == [0, 1, 2, 3]


def test_lists_hold_who_has_all_and_who_has_none(files):
    table = has(files, 2)
    rules = [(0, 3), (1, 2, 5)]
    lists = candidates(table, rules)
    for number, rule in enumerate(rules):
        for side, wanted in enumerate((~table[:, rule].any(1), table[:, rule].all(1))):
            begin, end = (int(lists.start[2 * number + side + i]) for i in (0, 1))
            rows = np.asarray(lists.entries[begin:end]) - (2 * number + side) * len(table)
            np.testing.assert_array_equal(rows, np.flatnonzero(wanted))


def test_pictures_left_out_are_never_drawn_and_all_others_equally_often():
    table = np.array([[True, True]] * 6 + [[False, False]] * 7 + [[True, False]] * 2)
    lists = candidates(table, [(0, 1)])
    without = jnp.array([[12, 7], [1, 4]])  # side 0 has rows 6 to 12, side 1 rows 0 to 5
    draw = eqx.filter_jit(jax.vmap(lambda key: lists.draw(jnp.asarray(0), 2, without=without, key=key)))
    found = np.asarray(draw(jr.split(jr.key(1), 4000)))
    for side, kept in enumerate(({6, 8, 9, 10, 11}, {0, 2, 3, 5})):
        pairs = [tuple(pair) for pair in found[:, side].tolist()]
        counts = [pairs.count(pair) for pair in permutations(sorted(kept), 2)]
        assert sum(counts) == 4000
        assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(("name", "part"), [("train", 0), ("val", 1)])
def test_pair_tasks_have_both_attributes_against_neither(name, part, drawn, files):
    tasks, table = drawn[name], has(files, part)
    rules = set()
    for support, query in zip(tasks.support, tasks.query, strict=True):
        rows = np.concatenate([support, query[0]], axis=1)
        assert rows.shape == (2, 5)
        assert len(set(rows.ravel().tolist())) == 10, "no picture twice in a task"
        rule = shared_by(table, rows[1]) & lacked_by(table, rows[0])
        assert len(rule) >= 2
        rules.add(frozenset(rule))
    assert len(rules) > 5


def test_validation_takes_every_pair_equally_often(benchmark, drawn, files):
    count = len(benchmark.val.pairs.rules)
    assert count == 10
    found = set()
    for support, query in zip(drawn["val"].support[:count], drawn["val"].query[:count], strict=True):
        rows = np.concatenate([support, query[0]], axis=1)
        rule = shared_by(has(files, 1), rows[1]) & lacked_by(has(files, 1), rows[0])
        found |= set(combinations(sorted(rule), 2))
    assert found >= set(combinations(range(5), 2))


def test_ambiguous_supports_have_three_attributes_and_each_query_set_two_of_them(benchmark, drawn, files):
    tasks, table = drawn["test"], has(files, 2)
    assert tasks.query.shape == (NUM_TASKS, 3, 2, 3)
    for support, query, rules in zip(tasks.support, tasks.query, tasks.rules, strict=True):
        pairs = [benchmark.test.pairs.rules[place] for place in rules]
        triplet = sorted(set(pairs[0]) | set(pairs[2]))
        assert pairs == [tuple(triplet[place] for place in pair) for pair in PAIRS]
        assert set(triplet) <= shared_by(table, support[1]) & lacked_by(table, support[0])
        for pair, (without, having) in zip(pairs, query, strict=True):
            assert set(pair) <= shared_by(table, having) & lacked_by(table, without)
            assert not {*having.tolist(), *without.tolist()} & set(support.ravel().tolist())
            assert len({*having.tolist(), *without.tolist()}) == 6


def test_query_sets_tell_the_rules_apart(drawn, benchmark, files):
    """Some pictures with both attributes of a pair lack the third, else there would be one rule."""
    table, tasks = has(files, 2), drawn["test"]
    lacking = 0
    for query, rules in zip(tasks.query, tasks.rules, strict=True):
        triplet = sorted({place for rule in rules for place in benchmark.test.pairs.rules[rule]})
        lacking += sum((~table[rows[1]][:, triplet].all(1)).sum() for rows in query)
    assert lacking > 0.3 * 3 * 3 * NUM_TASKS


def test_triplets_come_in_turn_and_the_first_tasks_do_not_depend_on_how_many(benchmark, drawn):
    many, count = drawn["test"], len(benchmark.test.triplets.rules)
    places = [tuple(rules) for rules in many.rules.tolist()]
    assert len(set(places[:count])) == count
    assert places[count:] == places[: NUM_TASKS - count]
    assert count < NUM_TASKS
    assert not np.array_equal(many.support[0], many.support[count]), "the same triplet, other pictures"
    few = draw(benchmark.test, 4, jr.key(3))
    for a, b in zip(jax.tree.leaves(few), jax.tree.leaves(many), strict=True):
        np.testing.assert_array_equal(a, b[:4])


@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_labels_are_permuted_by_a_fair_coin_and_agree_in_support_and_query(name, benchmark, drawn):
    source, label = getattr(benchmark, name), drawn[name].label
    assert chisquare([(label == 0).sum(), (label == 1).sum()]).pvalue > 1e-3
    tasks = jax.tree.map(lambda leaf: leaf[:6], drawn[name])
    assert set(np.asarray(tasks.label).tolist()) == {0, 1}
    batch = source.expand(tasks)
    for i, positive in enumerate(np.asarray(tasks.label).tolist()):
        sides = [positive, 1 - positive]
        np.testing.assert_array_equal(batch.tasks.support.y[i], np.repeat(sides, 2))
        np.testing.assert_array_equal(batch.tasks.query.y[i], np.tile(np.repeat(sides, 3), tasks.query.shape[1]))


def test_tasks_show_the_pictures_that_were_drawn(benchmark, drawn):
    source = benchmark.test
    tasks = jax.tree.map(lambda leaf: leaf[:6], drawn["test"])
    batch = source.expand(tasks)
    check_batch(batch, source.spec)
    assert source.spec.x_shape == (16, 16, 3)
    first = sum(PARTS[:2])  # test pictures are the last
    wanted = np.asarray(tasks.support)[:, ::-1].reshape(6, -1)
    np.testing.assert_array_equal(number_of(np.asarray(batch.tasks.support.x)), first + wanted)
    wanted = np.asarray(tasks.query)[:, :, ::-1].reshape(6, -1)
    np.testing.assert_array_equal(number_of(np.asarray(batch.tasks.query.x)), first + wanted)
    assert batch.rules is not None
    np.testing.assert_array_equal(batch.rules, tasks.rules)


@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_the_same_key_gives_the_same_tasks(name, benchmark, drawn):
    source = getattr(benchmark, name)
    assert isinstance(source, DrawingSource)
    again, other = (draw(source, NUM_TASKS, jr.key(seed)) for seed in (3, 4))
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(drawn[name]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(other.support, drawn[name].support)


def test_a_sample_is_what_was_drawn(benchmark):
    sampled = eqx.filter_jit(benchmark.train.sample)(4, key=jr.key(3))
    expanded = benchmark.train.expand(draw(benchmark.train, 4, jr.key(3)))
    for a, b in zip(jax.tree.leaves(sampled), jax.tree.leaves(expanded), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_half_of_the_training_pictures_are_turned_and_no_other(benchmark, key):
    def sampled(source, mirror: bool):
        noise = jr.randint(jr.key(0), source.album.pictures.shape, 0, 256).astype(jnp.uint8)  # its own are plain
        source = eqx.tree_at(lambda s: s.album.pictures, source, noise)
        return eqx.filter_jit(replace(source, settings=replace(source.settings, mirror=mirror)).sample)(30, key=key)

    one, other = (sampled(benchmark.train, mirror) for mirror in (False, True))
    for before, after in ((one.tasks.support, other.tasks.support), (one.tasks.query, other.tasks.query)):
        assert 0.4 < turned(np.asarray(before.x), np.asarray(after.x)).mean() < 0.6
        np.testing.assert_array_equal(before.y, after.y)
    for source in (benchmark.val, benchmark.test):
        jax.tree.map(np.testing.assert_array_equal, *(sampled(source, mirror) for mirror in (False, True)))


def test_no_picture_person_or_attribute_is_in_two_splits(benchmark, files):
    sources = (benchmark.train, benchmark.val, benchmark.test)
    pictures = [set(number_of(np.asarray(source.album.pictures)).tolist()) for source in sources]
    assert [len(each) for each in pictures] == list(PARTS)
    people = [{int(files.person[number]) for number in each} for each in pictures]
    attributes = [set(source.album.attributes) for source in sources]
    for kind in (pictures, people, attributes):
        for one, other in combinations(kind, 2):
            assert not one & other


def test_a_frozen_set_is_small_and_has_a_digest_of_its_pictures(benchmark):
    frozen = freeze(benchmark.test, 20, seed=2)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(frozen.stored)) < 10_000
    assert benchmark.conditions == {"pictures": 90, "shots": 2, "query": 3}
    chunk = next(frozen.chunks(5))
    assert chunk.tasks.query.x.shape == (5, 18, 16, 16, 3)
    darker = eqx.tree_at(lambda s: s.album.pictures, benchmark.test, benchmark.test.album.pictures // 2)
    assert freeze(darker, 20, seed=2).digest != frozen.digest


def test_tasks_to_be_drawn_name_their_rules(benchmark):
    shown = benchmark.showcases()
    assert [one.name for one in shown] == ["rules-1", "rules-2", "rules-3"]
    for one in shown:
        assert len(one.rules) == 3
        first, second = one.rules[0].split(" and ")
        third = one.rules[1].split(" and ")[1]
        assert one.rules == (f"{first} and {second}", f"{first} and {third}", f"{second} and {third}")
        assert one.x.shape[0] == 18


def test_rules_with_too_few_pictures_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))
    files = faces(PARTS, seed=1)
    bald, hat = NAMES.index("Bald"), NAMES.index("Wearing_Hat")
    files.attributes[:, bald] = -1
    files.attributes[:3, bald] = 1
    files.attributes[:, hat] = -1
    built: Any = replace(SETTINGS, data=str(files.write(tmp_path / "f"))).open()
    places = built.train.album.attributes.index("Bald"), built.test.album.attributes.index("Wearing_Hat")
    assert len(built.train.pairs.rules) == 24 * 23 // 2
    assert all(places[0] not in rule for rule in built.train.pairs.rules)
    assert built.test.triplets.rules
    assert all(places[1] not in rule for rule in built.test.triplets.rules)
    table = has(files, 2)
    for rule in built.test.triplets.rules:
        assert min(table[:, rule].all(1).sum(), (~table[:, rule].any(1)).sum()) >= 3 * SETTINGS.shots


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((4, 60, 90), "no two training attributes have 5 training pictures with both"),
        ((90, 4, 90), "no two validation attributes"),
        ((90, 60, 12), "no three test attributes have 6 test pictures with all"),
    ],
)
def test_too_few_pictures_for_any_rule_is_one_sentence(parts, said, tmp_path, monkeypatch):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SourceError, match=said):
        replace(SETTINGS, data=str(faces(parts).write(tmp_path / "f"))).open()


@pytest.mark.parametrize(
    ("old", "new", "said"), [("Young", "Youngish", "lack 'Young'"), ("Young", "Young Tall", "unknown attribute 'Tall'")]
)
def test_attributes_that_are_not_celebas_are_named(old, new, said, tmp_path, monkeypatch):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))
    files = faces((6, 4, 4))
    files.names = tuple(" ".join(NAMES).replace(old, new).split())
    files.attributes = np.concatenate([files.attributes, files.attributes], axis=1)[:, : len(files.names)]
    with pytest.raises(SourceError, match=said):
        replace(SETTINGS, data=str(files.write(tmp_path / "f"))).open()


@pytest.mark.parametrize(("name", "flag"), [("shots", "--shots"), ("query_per_class", "--query-per-class")])
def test_settings_that_make_no_sense_are_refused(name, flag):
    with pytest.raises(SettingError, match=f"{flag} must be at least 1; got 0"):
        replace(Config(), **{name: 0})


def test_a_saved_file_gives_the_same_tasks(benchmark, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))
    read_faces(folder, 16).save(tmp_path / "faces.npz")
    again = replace(SETTINGS, data=str(tmp_path / "faces.npz")).open()
    for name in ("train", "val", "test"):
        one, other = getattr(benchmark, name), getattr(again, name)
        assert one.content_digest == other.content_digest
        np.testing.assert_array_equal(one.pairs.entries, other.pairs.entries)
    one_in_folder = replace(SETTINGS, data=str(tmp_path)).open()
    assert one_in_folder.conditions == benchmark.conditions, "a folder with the one file is as good as the file"


@pytest.mark.slow
def test_the_shared_faces_give_71_triplets(monkeypatch, tmp_path):
    root = Path(os.environ.get("STMAML_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
    if not (root / "faces" / "lfwa.tar").exists():
        pytest.skip("needs faces/lfwa.tar in STMAML_DATA or ../shared/data")
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path))
    built: Any = Config(data=str(root / "faces")).open()
    assert built.notes == ()
    assert [len(s.album.pictures) for s in (built.train, built.val, built.test)] == [10542, 1327, 1274]
    assert (len(built.train.pairs.rules), len(built.val.pairs.rules), len(built.test.triplets.rules)) == (292, 10, 71)
