"""What regressor and classifier share."""

import abc
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import polars as pl
from jaxtyping import Shaped
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length

from stmaml.errors import SettingError
from stmaml.estimators.frames import check_no_gaps, frame_of, group_names, names_of, numbered, own_name, renamed
from stmaml.estimators.learning import Learnt, open_run
from stmaml.estimators.wanted import Wanted, seed_of
from stmaml.estimators.words import in_own_words
from stmaml.pool.model import PoolModel
from stmaml.pool.store import POOL
from stmaml.tables.model import FewShotModel
from stmaml.tables.schema import table_keys
from stmaml.tables.target import WantedTarget

LEARNT = ("learnt_", "is_prior_", "n_features_in_", "feature_names_in_", "classes_", "class_names_")
"""What is learnt across groups, by name."""
NO_GROUPS = (
    "has learnt from no groups yet. Call fit(X, y, groups=groups) with the rows of many groups first; fit(X, y) then "
    'adapts it to a new one. To cross_val_score, give params={"groups": groups} beside groups; to a Pipeline\'s fit, '
    "NAME__groups=groups; for a search, call sklearn.set_config(enable_metadata_routing=True) before it."
)

Estimator = TypeVar("Estimator", bound="FewShotEstimator")


class FewShotEstimator(BaseEstimator, abc.ABC):
    """Learns across groups, then predicts rows of known groups and of new ones."""

    _kind: WantedTarget
    # Where scikit-learn routes metadata, groups reach these without a set_..._request.
    __metadata_request__fit: ClassVar = {"groups": True}
    __metadata_request__predict: ClassVar = {"groups": True}

    def __init__(  # without types: scikit-learn wants nothing refused before fit
        self,
        *,
        method=POOL,
        members=(),
        minutes=None,
        shots=None,
        order=None,
        steps=None,
        preset="default",
        linear=True,
        min_query=5,
        num_samples=20,
        prior=None,
        random_state: Any = 0,
    ):
        """Stores the settings.

        Args:
            method: pool, or a name of METHODS for one method alone.
            members: models of the pool; all that suit the table if none is named.
            minutes: time for the pool's meta-learned member; by the size of the table if not given.
            shots: most labelled rows to expect of a new group; for a pool what half of the groups can spare, up to 10,
                if not given, for one method 10.
            order: column of X that orders the rows of a group: labelled rows are then the first ones.
            steps: for one method: meta-steps of training; those of the preset if not given. With `prior`: steps in
                which it is trained further on the table; none if not given.
            preset: for one method: sizes of networks and batches, default or large.
            linear: for one method: put a Bayesian linear regression with a learnt prior before it.
            min_query: for one method: a group needs this many rows beside its labelled ones, or it is left out.
            num_samples: for one method: predictors drawn for a group.
            prior: "tables" for a learner that ships with the package and is not trained: seconds instead of minutes.
            random_state: seed of weights, tasks and draws; None, or a RandomState that gives a new one to each
                `meta_fit` and `fit`.
        """
        self.method = method
        self.members = members
        self.minutes = minutes
        self.shots = shots
        self.order = order
        self.steps = steps
        self.preset = preset
        self.linear = linear
        self.min_query = min_query
        self.num_samples = num_samples
        self.prior = prior
        self.random_state = random_state

    def fit(self: Estimator, X: Any = None, y: Any = None, groups: Any = None) -> Estimator:
        """Itself: with groups, the name of the group of each row, after learning across them; without, adapted to the
        labelled rows of one new group, or to none.

        scikit-learn hands groups on to `fit` from `cross_val_score(..., params={"groups": groups})`, and from searches
        and pipelines after `sklearn.set_config(enable_metadata_routing=True)`.
        """
        if groups is not None:
            return self._learn(X, y, groups, is_prior=False)
        if X is not None or y is not None:
            self._check_given(X, y)
        self._check_learnt()
        self._check_num_samples()
        seed = seed_of(self.random_state)
        self.support_ = pl.DataFrame() if X is None else self._checked_support(X, y)
        self.seed_ = seed
        return self

    def meta_fit(self: Estimator, X: Any, y: Any, groups: Any) -> Estimator:
        """Itself, after learning across groups as `fit` with groups does; clones keep what was learnt."""
        if groups is None:
            raise ValueError("meta_fit needs groups, the name of the group of each row; got None.")
        return self._learn(X, y, groups, is_prior=True)

    @classmethod
    def from_run(cls: type[Estimator], folder: Path | str) -> Estimator:
        """An estimator that knows what a run of `stmaml fit` has learnt; clones know it too."""
        learnt, settings = open_run(Path(folder))
        target = learnt.schema.target
        if target.is_class != (cls._kind == "classification"):
            kind, other = ("classes", "FewShotClassifier") if target.is_class else ("numbers", "FewShotRegressor")
            raise SettingError(f"{folder} predicts {kind}. Open it with {other}.from_run.")
        made = cls(**settings)
        made._take_classes(target.classes)
        made.feature_names_in_ = np.array(learnt.inputs, dtype=object)
        made.n_features_in_ = len(learnt.inputs)
        return made._take(learnt, seed_of(made.random_state), is_prior=True)

    def save_run(self, folder: Path | str, force: bool = False) -> None:
        """Writes what a pool has learnt as a run, for `stmaml predict` and `from_run`; an existing run is only replaced
        with `force`. Its columns have the names that X, y and groups had."""
        self._check_learnt()
        self.learnt_.save(Path(folder), self._class_words(), force=force)

    @property
    def meta_model_(self) -> PoolModel | FewShotModel:
        """The model that was learnt across groups."""
        return self.learnt_.model

    @property
    def result_(self) -> dict[str, Any] | None:
        """What the scores of held-out groups say of a pool, as `stmaml fit --json` prints it."""
        return self.learnt_.result

    def __sklearn_is_fitted__(self) -> bool:
        """Whether `predict` may be called."""
        return getattr(self, "support_", None) is not None

    def __sklearn_clone__(self: Estimator) -> Estimator:
        """A copy that is not fitted, but keeps what `meta_fit` learnt: a prior, not a fit."""
        settings: Any = {name: clone(value, safe=False) for name, value in self.get_params(deep=False).items()}
        copy = type(self)(**settings)
        for name in LEARNT if getattr(self, "is_prior_", False) else ():
            if hasattr(self, name):
                setattr(copy, name, getattr(self, name))
        return copy

    def __sklearn_tags__(self) -> Any:
        """Missing values and text are welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags

    @abc.abstractmethod
    def _learn_classes(self, y: Any) -> None:
        """Learns what classes there are, if there are any."""

    @abc.abstractmethod
    def _take_classes(self, names: tuple[str, ...]) -> None:
        """Takes the classes of a run."""

    @abc.abstractmethod
    def _class_words(self) -> tuple[str, ...]:
        """The model's classes as a table would name them."""

    @abc.abstractmethod
    def _labels(self, y: Any) -> Shaped[np.ndarray, " n"] | list[str]:
        """Targets as the model reads them."""

    def _learn(self: Estimator, X: Any, y: Any, groups: Any, *, is_prior: bool) -> Estimator:
        self._check_given(X, y)
        frame = frame_of(X)
        check_consistent_length(frame, y, groups)
        check_no_gaps("y", y)
        task = own_name(groups, "group", frame.columns)
        target = own_name(y, "target", [*frame.columns, task])
        with in_own_words(target):
            seed = seed_of(self.random_state)
            self._check_num_samples()
            names = group_names(groups, task)
            self._learn_classes(y)
            rows = frame.with_columns(names, pl.Series(target, self._labels(y)))
            learnt = self._wanted().learn(rows, task, target, self._kind, seed=seed)
        self._remember(frame, X)
        return self._take(learnt, seed, is_prior=is_prior)

    def _wanted(self) -> Wanted:
        others = ("num_samples", "random_state")
        given = {name: value for name, value in self.get_params(deep=False).items() if name not in others}
        return Wanted(**{**given, "members": tuple(self.members or ())})

    def _take(self: Estimator, learnt: Learnt, seed: int, *, is_prior: bool) -> Estimator:
        self.learnt_, self.is_prior_, self.seed_ = learnt, is_prior, seed
        self.support_ = pl.DataFrame()
        return self

    def _checked_support(self, X: Any, y: Any) -> pl.DataFrame:
        """The labelled rows of one group, if the model can use them."""
        frame = self._known_frame(X)
        check_consistent_length(frame, y)
        check_no_gaps("y", y)
        target = self.learnt_.schema.target.name
        support = frame.with_columns(pl.Series(target, self._labels(y)))
        with in_own_words(target):
            self.learnt_.model.check_support(support)
        return support

    def _check_given(self, X: Any, y: Any) -> None:
        if X is None or y is None:
            what, gone = ("X", "rows X are") if X is None else ("y", "target y is")
            raise ValueError(f"{type(self).__name__} requires {what} to be passed, but the {gone} None.")

    def _check_num_samples(self) -> None:
        if self.num_samples < 1:
            raise SettingError(f"num_samples must be at least 1; got {self.num_samples}.")

    def _check_learnt(self) -> None:
        if not hasattr(self, "learnt_"):
            raise NotFittedError(f"this {type(self).__name__} {NO_GROUPS}")

    def _remember(self, frame: pl.DataFrame, X: Any) -> None:
        self.n_features_in_ = frame.width
        if names_of(X) is None:
            vars(self).pop("feature_names_in_", None)  # of an earlier fit
        else:
            self.feature_names_in_ = np.array(frame.columns, dtype=object)

    def _known_frame(self, X: Any) -> pl.DataFrame:
        """The rows as a frame, whose columns must be those that were learnt from."""
        frame, given = frame_of(X), names_of(X)
        if frame.width != self.n_features_in_:
            raise ValueError(
                f"X has {frame.width} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                "as input."
            )
        names = list(getattr(self, "feature_names_in_", ()))
        if given is None or not names:
            return renamed(frame, names or numbered(frame.width))
        if sorted(given) != sorted(names):
            odd = min(set(given) ^ set(names))
            raise ValueError(f"the columns of X are not those of meta_fit: '{odd}' is in only one of them.")
        return frame

    def _asked(self, X: Any, groups: Any) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """The rows to predict, by group if groups are named, and labelled rows for them."""
        self._check_learnt()
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(self).__name__} is not adapted to a group yet. Call fit(X, y) first.")
        query = self._known_frame(X)
        if groups is None:
            return query, self.support_ if self.support_.width else None
        check_consistent_length(query, groups)
        asked = query.with_columns(group_names(groups, self.learnt_.schema.task))
        return asked, self.learnt_.known_rows(asked)

    def _answer(self, X: Any, groups: Any, levels: tuple[float, ...]) -> pl.DataFrame:
        query, support = self._asked(X, groups)
        with in_own_words(self.learnt_.schema.target.name):
            model = self.learnt_.model
            answer = model.predict(query, support, num_samples=self.num_samples, levels=levels, seed=self.seed_)
        if answer.frame.height < query.height:
            raise ValueError(
                f"groups has names that stand for a missing one: {', '.join(self.learnt_.schema.missing)}."
            )
        return answer.frame

    def _draw(self, X: Any, groups: Any, n_samples: int, random_state: Any) -> Shaped[np.ndarray, "n d"]:
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1; got {n_samples}.")
        query, support = self._asked(X, groups)
        seed = self.seed_ if random_state is None else seed_of(random_state)
        with in_own_words(self.learnt_.schema.target.name):
            if groups is None:
                return self.learnt_.model.sample(query, support, n_samples, seed=seed).T
            return self._draw_by_group(query, n_samples, seed)

    def _draw_by_group(self, query: pl.DataFrame, n_samples: int, seed: int) -> Shaped[np.ndarray, "n d"]:
        """Draws for each group in turn, with a seed of its own."""
        schema, learnt = self.learnt_.schema, self.learnt_
        names, place = np.unique(table_keys(query, schema.task).to_numpy(), return_inverse=True)
        seeds = check_random_state(seed).randint(2**31 - 1, size=len(names))
        rows = [np.flatnonzero(place == i) for i in range(len(names))]
        parts = [
            learnt.model.sample(query[mine], learnt.known_rows(query[mine]), n_samples, seed=int(own)).T
            for mine, own in zip(rows, seeds, strict=True)
        ]
        return np.concatenate(parts)[np.argsort(np.concatenate(rows))]
