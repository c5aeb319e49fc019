"""Served learners say what the learners themselves say, whatever they are padded to, and compile nothing when asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float

from stmaml.errors import RunError, SettingError, SourceError
from stmaml.experiments import with_inner_steps
from stmaml.methods import METHODS
from stmaml.methods.base import AbstractMetaLearner, predict_with
from stmaml.prediction import Prediction
from stmaml.runs import Run
from stmaml.serving import curves, pixels, programs, years
from stmaml.serving.arrays import ArrayServed, rounded
from stmaml.serving.base import Card
from stmaml.serving.examples import Example, load_examples, save_examples
from stmaml.serving.opening import Source, open_all, page_of, shipped_sources
from stmaml.serving.programs import Sizes, same_in_all
from stmaml.serving.schema import Refused
from stmaml.serving.service import Service
from stmaml.shipped import load_pretrained
from stmaml.tasks import Examples, TaskSpec
from tests.idx_files import grey, write_family

SIZES = Sizes(shots=(4, 8), rows=(4, 16), draws=8)
SHIPPED = shipped_sources()[0].folder


@contextmanager
def counting_compilations() -> Iterator[list[str]]:
    """Names of what is compiled inside the block."""
    found: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "compile" in event:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(scope="module")
def served() -> Iterator[ArrayServed]:
    run = Run(SHIPPED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "BAYES_DRAWS", 2**10)
        patch.setattr(programs, "FEW", 4)
        one = replace(curves.open_run(run, Card("shipped", "Shipped", "curves", "st-maml"), None), sizes=SIZES)
        for _ in zip(range(5), one.warm_up(), strict=False):  # all sizes at the steps of training, and what is extra
            pass
        yield one


POINTS = np.array([[0.5, 1.0], [2.0, 1.0], [4.0, 1.0]], np.float32)
LABELS = np.array([0.3, -1.0, 2.0], np.float32)
ASKED = np.stack([np.linspace(0, 5, 21), np.ones(21)], axis=1).astype(np.float32)


def asked_of(served: ArrayServed, **more) -> dict:
    body = {"support": {"x": POINTS.tolist(), "y": LABELS.tolist()}, "query": {"x": ASKED.tolist()}, **more}
    return Service.of([served]).predict("shipped", body)


@eqx.filter_jit
def directly(learner: AbstractMetaLearner, draws: int) -> tuple[Prediction, Float[Array, "2 n"]]:
    """What the first of eight draws say, without padding, and the band."""
    support = Examples.of(jnp.asarray(POINTS), jnp.asarray(LABELS)[:, None])
    predictors = learner.adapt(support, num_samples=8, key=jr.key(0))
    said = predict_with(jax.tree.map(lambda leaf: leaf[:draws], predictors), jnp.asarray(ASKED))
    return said, said.quantiles(jnp.array([0.05, 0.95]))[..., 0]


@pytest.mark.parametrize("draws", [1, 4, 8])
def test_padding_parts_and_fewer_draws_change_nothing(served, draws):
    """Three points in four places, 21 inputs in parts of 16, and the first draws of eight: against none of it."""
    said = asked_of(served, draws=draws, samples=draws)
    want, (low, high) = directly(load_pretrained(), draws)
    for name, value in (("mean", want.mean[:, 0]), ("std", want.std[:, 0]), ("low", low), ("high", high)):
        np.testing.assert_allclose(said[name], value, rtol=1e-3, atol=1e-3, err_msg=name)
    np.testing.assert_allclose(said["samples"], want.components.mean()[..., 0], rtol=1e-3, atol=1e-3)
    assert (said["draws"], said["shots"]) == (draws, 3)


def test_an_answer_fits_the_form_it_is_announced_with(served):
    served.forms.answer.check(asked_of(served, samples=2), "answer")
    told = served.forms.extras["optimum"].form.check({"support": {"x": [[1, 1]], "y": [0.5]}}, "request")
    served.forms.extras["optimum"].answer.check(served.forms.extras["optimum"].act(told), "answer")


def test_no_request_compiles(served):
    asked_of(served)
    with counting_compilations() as found:
        for count in (0, 1, 3, 8):
            support = {"x": np.ones((count, 2)).tolist(), "y": [0.5] * count}
            for rows in (1, 5, 40):
                query = {"x": np.ones((rows, 2)).tolist()}
                Service.of([served]).predict("shipped", {"support": support, "query": query, "draws": 3, "seed": count})
            Service({"shipped": served}, ready=True).extra("shipped", "optimum", {"support": support})
    assert found == []


def test_what_is_extra_is_not_compiled_by_a_request(served):
    with pytest.raises(Refused, match="'optimum' is still being compiled") as refusal:
        Service.of([served]).extra("shipped", "optimum", {"support": {"x": [], "y": []}})
    assert (refusal.value.status, refusal.value.wait) == (503, 10)


def test_a_program_that_is_not_ready_is_not_waited_for(served):
    with pytest.raises(Refused, match="still being compiled") as refusal:
        asked_of(served, inner_steps=1)
    assert (refusal.value.status, refusal.value.wait) == (503, 10)


def test_inner_steps_are_those_that_are_asked_for(served):
    """Those of one step are compiled here alone."""
    served.programs._compile_for(1, 4)
    want = directly(with_inner_steps(load_pretrained(), 1), 4)[0].mean[:, 0]
    said = np.array(asked_of(served, inner_steps=1, draws=4)["mean"])
    np.testing.assert_allclose(said, want, rtol=1e-3, atol=1e-3)
    assert np.abs(np.array(asked_of(served, draws=4)["mean"]) - said).max() > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": {"x": [[0, 1]], "of": "line"}}, "either 'x' or 'of'"),
        ({"query": {}}, "either 'x' or 'of'"),
        ({"query": {"x": [[0, 1]], "rows": [0]}}, "name it with 'of'"),
        ({"query": {"of": "line", "rows": [500]}}, "must be below 121; got 500"),
        ({"query": {"of": "lines"}}, "one of line, cut"),
        ({"query": {"x": []}}, "no input"),
        ({"support": {"x": [[0, 1]], "y": [1, 2]}}, "a target for each of the 1 inputs; got 2"),
        ({"support": {"x": [[0, 1]] * 9, "y": [1] * 9}}, "at most 8 rows"),
        ({"inner_steps": 3}, "one of 0, 1"),
        ({"draws": 65}, "from 1 to 8"),
    ],
)
def test_what_cannot_be_asked_is_refused(served, change, words):
    with pytest.raises(Refused, match=words):
        asked_of(served, **change)


def test_weights_that_all_draws_share_are_held_once(served):
    drawn = served.programs.adapt(POINTS, LABELS, None, 0)
    held, weights = (
        sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(each, eqx.is_array)))
        for each in (drawn, load_pretrained())
    )
    assert drawn.count == SIZES.draws
    assert held < SIZES.draws * weights / 2
    whole = jax.tree.leaves(eqx.filter(drawn.chosen(jnp.arange(3)), eqx.is_array))
    assert {leaf.shape[0] for leaf in whole} == {3}


def test_particles_are_not_taken_for_shared():
    spec, sizes = TaskSpec((2,), 1), Sizes((4,), (4,), 8)
    for name, some in (("bmaml", False), ("maml", False), ("np", True)):
        learner = METHODS[name]().build(spec, key=jr.key(0))
        assert any(same_in_all(learner, spec, sizes)) == some, name


def test_an_answer_that_is_not_finite_is_refused(served, monkeypatch):
    said = {name: np.full(21, np.nan) for name in ("mean", "samples")}
    monkeypatch.setattr(type(served.programs), "answer", lambda *told: (said, 1))
    with pytest.raises(Refused, match="not finite") as refusal:
        asked_of(served)
    assert refusal.value.status == 422


def test_digits_that_nobody_reads_are_left_out():
    assert rounded(np.array([1 / 3, 2000.123456])) == [0.33, 2000.12]
    assert rounded(np.array([1.23456789e-7])) == [1.23457e-07]
    assert rounded(np.zeros(2)) == [0.0, 0.0]


def test_shipped_learners_are_found_and_runs_get_names_of_their_own(monkeypatch):
    assert shipped_sources()[0].folder.name == "regression2d"
    first, second = open_all([Source(SHIPPED), Source(SHIPPED)])
    assert (first.card.name, second.card.name) == ("regression2d", "regression2d-2")


def test_a_benchmark_without_a_page_is_refused():
    with pytest.raises(SettingError, match=r"run of celeba, which has no page. Serve runs of regression2d, completion"):
        page_of("celeba", Path("run"))
    with pytest.raises(RunError, match="'chess' that this version does not know"):
        page_of("chess", Path("run"))


def test_a_card_beside_the_weights_is_shown(tmp_path):
    for file in SHIPPED.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "card.md").write_text("# Honest words")
    (one,) = open_all([Source(tmp_path)])
    assert Service.of([one]).about(one.card.name)["card"] == "# Honest words"


def test_examples_of_every_family_begin_near_their_truth():
    found = curves.examples(curves.Config())
    assert [one["name"] for one in found] == [family.name for family in curves.FAMILIES]
    for one in found:
        x, y = np.array(one["truth"]).T
        points = np.array(one["points"])
        assert np.abs(np.interp(points[:, 0], x, y) - points[:, 1]).max() < 0.5, one["name"]


def test_drawn_pictures_stand_in_for_those_of_files(monkeypatch):
    monkeypatch.delenv("STMAML_DATA", raising=False)
    source, shown = pixels.tasks_of(replace(pixels.Config(), inputs="waves"), asked=False, drawn=False)
    assert (source.album.shape, source.settings.inputs) == ((28, 28), "waves")
    assert len(shown) == source.album.counts[0] > 8
    assert all(len(one["grey"]) == 784 and max(one["grey"]) > 150 for one in shown)
    with pytest.raises(SourceError):
        pixels.tasks_of(replace(pixels.Config(), data="/nowhere"), asked=True, drawn=True)


def test_a_shipped_learner_of_pictures_begins_with_drawn_ones_whatever_files_there_are(tmp_path):
    write_family(tmp_path / "mnist", train=grey(30, height=28, width=28), test=grey(30, height=28, width=28))
    settings = replace(pixels.Config(), data=str(tmp_path))
    names = {drawn: pixels.tasks_of(settings, asked=False, drawn=drawn)[1][0]["name"] for drawn in (False, True)}
    assert names == {False: "mnist 1", True: "two"}


def test_years_are_kept_beside_weights(tmp_path):
    x = np.ones((5, 3), np.float32)
    year = Example("a-1", x, np.arange(5.0), np.arange(5.0), (1, 3))
    save_examples(tmp_path, [year])
    (found,) = load_examples(tmp_path, 3)
    assert (found.name, found.labelled) == ("a-1", (1, 3))
    np.testing.assert_array_equal(found.x, x)
    with pytest.raises(RunError, match="another size than the learner's 4"):
        load_examples(tmp_path, 4)
    assert load_examples(tmp_path / "none", 3) == []
    assert years.SIZES.rows[-1] == 366
