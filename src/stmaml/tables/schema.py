"""What the columns of a table hold: found out once, stored with the run, applied to every new row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Float32, Shaped

from stmaml.border.typed import from_dict, need
from stmaml.errors import SettingError, SourceError
from stmaml.runs import as_json
from stmaml.tables import columns as cells
from stmaml.tables.columns import KINDS, Boolean, Categorical, Column, Date, Dropped, Numeric
from stmaml.tables.reading import check_has
from stmaml.tables.stored import check_scale

MAX_LEVELS = 24
MIN_LEVEL_ROWS = 5
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


@dataclass(frozen=True)
class Schema:
    """What each column of a table holds, with all that turns new rows into the same numbers."""

    task: str
    target: Target
    columns: tuple[Column, ...]
    missing: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns it knows: group, target and inputs."""
        return (self.task, self.target.name, *(column.name for column in self.used))

    @property
    def used(self) -> tuple[Numeric | Boolean | Categorical | Date, ...]:
        """The columns that are inputs."""
        return tuple(column for column in self.columns if not isinstance(column, Dropped))

    @property
    def outputs(self) -> list[str]:
        """Names of all inputs of the network."""
        return [name for column in self.columns for name in column.outputs]

    def encode(
        self, frame: pl.DataFrame, label: str = "the table", notes: list[str] | None = None
    ) -> Float32[np.ndarray, "n dx"]:
        """The inputs of each row. What had to be assumed is added to `notes`."""
        notes = [] if notes is None else notes
        absent = [column.name for column in self.used if column.name not in frame.columns]
        if 2 * len(absent) > len(self.used):
            raise SourceError(
                f"{label} is of another kind than the training table: it lacks {_quoted(absent)}; it has: "
                f"{', '.join(frame.columns[:20])}. Give a table with the columns that training used."
            )
        if absent:
            notes.append(f"{label} lacks {_quoted(absent)}; taken as missing in all rows")
        full = frame.with_columns(pl.Series(name, [None] * frame.height, dtype=pl.String) for name in absent)
        said = {column.name: [] if column.name in absent else notes for column in self.used}
        parts = [column.encode(full[column.name], self.missing, said[column.name]) for column in self.used]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        """The schema as plain lists and dictionaries."""
        return as_json(self)

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Schema":
        """The schema back from `to_json`; RunError if it is none that was ever found out."""
        columns = tuple(from_dict(KINDS[column["kind"]], column, "schema.") for column in content["columns"])
        target, missing = content["target"], need(tuple[str, ...], content["missing"], "missing")
        schema = Schema(need(str, content["task"], "task"), from_dict(Target, target, "target."), columns, missing)
        for each in (*columns, schema.target):
            check_scale(as_json(each), each.name)
        return schema


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:8]) + (" and others" if len(names) > 8 else "")


def infer_column(series: pl.Series, keys: pl.Series, train: Chosen, missing: Sequence[str] = ()) -> Column:
    """What a column holds, judged by all rows; its mean, spread and frequent values by training rows alone."""
    if (odd := cells.unusable_type(series)) is not None:
        return Dropped(series.name, f"of type {odd}, which cannot be used")
    text = cells.as_text(series, missing)
    present = text.drop_nulls()
    if present.len() == 0:
        return Dropped(series.name, "empty")
    if present.n_unique() == 1 and present.len() == text.len():
        return Dropped(series.name, "constant")
    chosen = pl.Series(train)
    flags = cells.as_flags(series, missing)
    if flags.null_count() == text.null_count():
        known = flags.filter(chosen).drop_nulls().to_numpy()
        return Boolean(series.name, float(np.mean(known)) if known.size else 0.5, _has_gaps(text.filter(chosen)))
    numbers = cells.as_numbers(series, missing)
    if numbers.len() - numbers.null_count() >= NUMBER_SHARE * present.len():
        cells.check_finite(numbers)
        return _numeric(series.name, numbers.filter(chosen))
    if (comma := cells.decimal_comma(text)) is not None:
        return Dropped(series.name, f"numbers with decimal commas, such as '{comma}': write them with points")
    if (found := _date_format(series, text)) is not None:
        dated = cells.as_dates(series.set(text.is_null(), None), found or None)
        return _date(series.name, found or None, dated.filter(chosen))
    return _categorical(series.name, text, keys, chosen)


def _has_gaps(values: pl.Series) -> bool:
    return bool(values.null_count())


def _numeric(name: str, numbers: pl.Series) -> Column:
    known = numbers.drop_nulls().to_numpy()
    if known.size == 0 or known.min() == known.max():
        return Dropped(name, "constant in the training groups")
    low, fill, high = np.quantile(known, [0.001, 0.5, 0.999])
    inside = np.clip(known, *_fences(known))  # a forgotten missing-value code must not set the scale
    mean, std = float(inside.mean()), float(inside.std()) or 1.0
    return Numeric(name, float(fill), mean, std, float(low), float(high), _has_gaps(numbers))


def _fences(known: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Where the bulk of the values ends: five times the middle 90 % beyond its ends."""
    low, high = np.quantile(known, [0.05, 0.95])
    width = high - low
    return (float(low - 5 * width), float(high + 5 * width)) if width > 0 else (float(known.min()), float(known.max()))


def odd_values(name: str, numbers: pl.Series) -> str | None:
    """A sentence about values so far from the others that they may be codes for missing ones or another unit."""
    known = numbers.drop_nulls().to_numpy()
    low, high = _fences(known) if known.size else (0.0, 0.0)
    odd = known[(known < low) | (known > high)]
    if odd.size == 0:
        return None
    return (
        f"'{name}' has {odd.size} values such as {odd[0]:.6g}, far from the usual {np.quantile(known, 0.05):.6g} to "
        f"{np.quantile(known, 0.95):.6g}; if they stand for missing, name them with --missing"
    )


def _date_format(series: pl.Series, text: pl.Series) -> str | None:
    """The format all cells are in; empty for dates as such or in ISO 8601, None for no dates."""
    if series.dtype.is_temporal():
        return ""
    present = text.drop_nulls()

    def fits(candidate: str, part: pl.Series) -> bool:
        return cells.as_dates(part, candidate or None).null_count() == 0

    found = (one for one in ("", *cells.DATE_FORMATS) if fits(one, present.head(200)) and fits(one, present))
    return next(found, None)


def _date(name: str, date_format: str | None, days: pl.Series) -> Column:
    known = days.drop_nulls().to_numpy()
    if known.size == 0 or known.min() == known.max():
        return Dropped(name, "constant in the training groups")
    mean, std, low, high = (float(number) for number in (known.mean(), known.std(), known.min(), known.max()))
    parts = [part for part, least in (("year", 60.0), ("week", 14.0)) if high - low >= least]
    if np.unique(known % 1).size > 1:  # times of day, not days alone
        parts.append("day")
    return Date(name, date_format, mean, std, low, high, tuple(parts), _has_gaps(days))


def _categorical(name: str, text: pl.Series, keys: pl.Series, chosen: pl.Series) -> Column:
    pairs = pl.DataFrame({"key": keys, "value": text}).drop_nulls().unique()
    num_values = int(text.drop_nulls().n_unique())
    num_groups = int(keys.drop_nulls().n_unique())
    if num_values > 2 and pairs.height <= num_groups and num_values > num_groups / 2:
        return Dropped(name, "names the groups: a new group would have a new value")
    if num_values > 50 and num_values > 0.5 * text.drop_nulls().len():
        return Dropped(name, "text with hardly a value twice")
    known = text.filter(chosen)
    counts = known.drop_nulls().value_counts(sort=True).filter(pl.col("count") >= MIN_LEVEL_ROWS)
    levels = tuple(sorted(counts[name].head(MAX_LEVELS).to_list()))
    if not levels:
        return Dropped(name, "text with hardly a value twice")
    return Categorical(name, levels, int(known.drop_nulls().n_unique()), _has_gaps(known))


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
        classes = tuple(sorted(present.unique().to_list(), key=_class_order))
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
    return Target(name, float(known.mean()), float(known.std()), float(low), float(high))


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


def _class_order(word: str) -> tuple[bool, float, str]:
    number = cells.as_number(word)
    return (number is None, number or 0.0, word)


def infer_schema(
    frame: pl.DataFrame,
    task: str,
    target: str,
    *,
    train: Chosen,
    features: Sequence[str] = (),
    drop: Sequence[str] = (),
    kind: WantedTarget = "auto",
    missing: Sequence[str] = (),
    notes: list[str] | None = None,
) -> Schema:
    """The schema of a table; `train` says which rows scales may be learnt from."""
    notes = [] if notes is None else notes
    check_has(frame.columns, [task, target, *features, *drop], "the table")
    check_roles(task, target, features, drop)
    names = [name for name in (features or frame.columns) if name not in (task, target, *drop)]
    keys = table_keys(frame, task, missing)
    columns = tuple(infer_column(frame[name], keys, train, missing) for name in names)
    schema = Schema(task, infer_target(frame[target], train, kind, missing), columns, tuple(missing))
    notes.extend(_name_notes("group", keys))
    if schema.target.is_class:
        notes.extend(_name_notes("class", cells.as_labels(frame[target], missing)))
    numeric = [column.name for column in schema.used if isinstance(column, Numeric)]
    scaled = numeric if schema.target.is_class else [*numeric, target]
    said = [odd_values(name, cells.as_numbers(frame[name], missing)) for name in scaled]
    said += [day_numbers(name, cells.as_text(frame[name], missing)) for name in numeric]
    notes.extend(filter(None, said))
    return schema


def check_roles(task: str, target: str, features: Sequence[str], drop: Sequence[str]) -> None:
    """Raises SettingError if one column is to serve two purposes."""
    if task == target:
        raise SettingError(f"--task and --target must name different columns; both name '{task}'.")
    if twice := [name for name in features if list(features).count(name) > 1]:
        raise SettingError(f"--features names '{twice[0]}' twice. Name it once.")
    for flag, names in (("--task", [task]), ("--target", [target]), ("--drop", drop)):
        if both := [name for name in features if name in names]:
            raise SettingError(f"--features and {flag} must name different columns; both name '{both[0]}'.")


def _name_notes(what: str, names: pl.Series) -> Iterator[str]:
    """What to say about groups and classes whose names stand for a missing value elsewhere."""
    for name, count in names.filter(cells.is_missing_word(names)).value_counts(sort=True).iter_rows():
        yield (
            f"'{names.name}' has a {what} called '{name}' ({count} rows); if that stands for a missing one, add "
            f"--missing {quote(name)}"
        )


def day_numbers(name: str, text: pl.Series) -> str | None:
    """A sentence about numbers of eight digits that are all days, such as 20230129."""
    present = text.drop_nulls()
    eight = present.str.contains(r"^(19|20)\d{6}$").all()
    if not eight or present.str.strptime(pl.Date, "%Y%m%d", strict=False).null_count():
        return None
    day, iso = present[0], f"{present[0][:4]}-{present[0][4:6]}-{present[0][6:]}"
    taken = f"'{name}' is taken as a number, but all its values are days, such as {day}"
    return f"{taken}; write {iso} to have it taken as a date"


def table_keys(frame: pl.DataFrame, task: str, missing: Sequence[str] = ()) -> pl.Series:
    """The group of each row, null where it has none; one group without a name where there is no such column."""
    if task not in frame.columns:
        return pl.Series(task, [""] * frame.height, dtype=pl.String)
    return cells.as_names(frame[task], missing)
