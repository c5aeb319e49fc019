"""The column to predict: what it holds, and what it must not hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Literal

import numpy as np
import polars as pl
from jaxtyping import Bool, Shaped

from stmaml.errors import SourceError
from stmaml.tables import cells
from stmaml.tables.oddities import centre_and_spread, far_codes, odd_values, refuse_codes, refuse_outliers

MAX_CLASSES = 50
NUMBER_SHARE = 0.98  # of a column's cells: the odd word in a column of numbers is a missing value

WantedTarget = Literal["auto", "regression", "classification"]
Chosen = Bool[np.ndarray, " n"]


@dataclass(frozen=True)
class Target:
    """The column to predict: numbers with their mean and spread, or classes by name."""

    name: str
    mean: float = 0.0
    std: float = 1.0
    low: float = 0.0
    high: float = 0.0
    classes: tuple[str, ...] = ()

    @property
    def is_class(self) -> bool:
        """Whether classes are predicted."""
        return bool(self.classes)

    def values(self, frame: pl.DataFrame, missing: Sequence[str]) -> Shaped[np.ndarray, " n"]:
        """Numbers as doubles, NaN where missing; or class numbers, -1 where missing."""
        series = frame[self.name]
        if not self.is_class:
            numbers = cells.as_numbers(series, missing)
            cells.check_finite(numbers)
            if (bad := cells.as_text(series, missing).filter(numbers.is_null()).drop_nulls()).len():
                raise SourceError(
                    f"the target '{self.name}' must hold numbers; it holds '{bad[0]}'. {cells.advice(bad)}"
                )
            return numbers.to_numpy()
        text, classes = cells.as_names(series, missing), cells.as_names(pl.Series(self.classes)).to_list()
        if sorted(name.lower() for name in classes) == ["false", "true"]:  # one tool writes True, another true
            text, classes = text.str.to_lowercase(), [name.lower() for name in classes]
        known = text.is_in(classes)
        text = text.set(cells.is_missing_word(text) & ~known, None)
        if (new := text.filter(~known).drop_nulls()).len():
            raise SourceError(
                f"the target '{self.name}' has the class '{new[0]}', which training did not have; it had: "
                f"{', '.join(self.classes[:20])}. Remove those rows, or fit again with them."
            )
        return text.replace_strict(classes, range(len(classes)), default=-1, return_dtype=pl.Int64).to_numpy()

    def describe(self) -> str:
        """What was learnt, in words."""
        if self.is_class:
            return f"classes: {', '.join(self.classes[:8])}" + (" ..." if len(self.classes) > 8 else "")
        return f"{self.low:.4g} to {self.high:.4g}, mean {self.mean:.4g}, spread {self.std:.4g}"


def infer_target(series: pl.Series, train: Chosen, kind: WantedTarget = "auto", missing: Sequence[str] = ()) -> Target:
    """What is to be predicted: numbers, or classes where they are words or just two."""
    name = series.name
    numbers, present = cells.as_numbers(series, missing), cells.as_labels(series, missing).drop_nulls()
    if present.len() == 0:
        raise SourceError(f"the target '{name}' is empty in every row. Choose another column.")
    if present.n_unique() == 1:
        raise SourceError(f"the target '{name}' is '{present[0]}' in every row. Choose one that varies.")
    words = cells.as_text(series, missing).filter(numbers.is_null()).drop_nulls()
    if kind != "classification" and words.len():
        _check_no_stray_words(name, words, present, kind)
    if kind == "classification" or (kind == "auto" and (words.len() or present.n_unique() == 2)):
        classes = tuple(sorted(present.unique().to_list(), key=class_order))
        if len(classes) > MAX_CLASSES:
            raise SourceError(
                f"the target '{name}' has {len(classes)} classes, such as '{classes[0]}'; up to {MAX_CLASSES} can be "
                "told apart. Make it a number for regression, or join classes."
            )
        return Target(name, classes=classes)
    cells.check_finite(numbers)
    known = numbers.filter(pl.Series(train)).drop_nulls().to_numpy()
    if known.size == 0 or known.min() == known.max():
        raise SourceError(f"the target '{name}' is the same in all training groups. Name one that varies.")
    low, high = np.quantile(known, [0.001, 0.999])
    return Target(name, *centre_and_spread(known), float(low), float(high))


def _check_no_stray_words(name: str, words: pl.Series, present: pl.Series, kind: WantedTarget) -> None:
    """Raises SourceError where words stand among the numbers of a target that is, or has to be, numeric."""
    if (comma := cells.decimal_comma(present)) is not None:
        raise SourceError(
            f"the target '{name}' has decimal commas, such as '{comma}'. Write them with points, or use --kind "
            "classification if they are names."
        )
    num_numbers = present.len() - words.len()
    many = present.n_unique() > MAX_CLASSES and 2 * num_numbers > present.len()
    if kind == "regression" or many or num_numbers >= NUMBER_SHARE * present.len():
        raise SourceError(
            f"the target '{name}' must hold numbers for regression; it holds '{words[0]}' ({words.len()} of "
            f"{present.len()} cells are no numbers). Correct it, name such cells with --missing {quote(words[0])}, or "
            "use --kind classification."
        )


def class_order(word: str) -> tuple[bool, float, str]:
    """What classes are sorted by: numbers by their size, words after them."""
    number = cells.as_number(word)
    return (number is None, number or 0.0, word)


def check_target(series: pl.Series, missing: Sequence[str] = (), *, keep_codes: bool = False) -> list[str]:
    """What to say about numbers far from the others; raises SourceError for those that must not be learnt."""
    numbers = cells.as_numbers(series, missing)
    codes = far_codes(numbers)
    if not keep_codes:
        refuse_codes(series.name, codes)
    refuse_outliers(series.name, numbers)
    noted = [f"the target '{series.name}' {code.where()}; it is kept as real" for code in codes]
    rest = numbers.filter(~numbers.is_in([code.value for code in codes]))
    return [*noted, *filter(None, [odd_values(series.name, rest)])]
