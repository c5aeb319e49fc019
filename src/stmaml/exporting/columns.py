"""What a reader must know of a table's columns, so that it need not know what kinds of columns there are.

A column of words says what numbers each word becomes; a column of numbers or dates how they are scaled."""

from typing import Any

import numpy as np

from stmaml.tables.cells import FALSE_WORDS, MISSING_WORDS, TRUE_WORDS, as_number
from stmaml.tables.columns import MAX_SCALED, PERIODS, Boolean, Categorical, Date, Numeric, Ordinal, Used
from stmaml.tables.dates import ISO_DAY
from stmaml.tables.schema import Schema
from stmaml.tables.target import Target

TURNS = (1, 2)  # of the waves of a date, in each period
FARTHEST = 1e300  # where nothing is cut off


def columns_of(schema: Schema) -> dict[str, Any]:
    """The inputs, the target, and what stands for a missing cell."""
    return {
        "columns": [WRITERS[column.kind](column) for column in schema.used],
        "column": _target(schema.target),
        "missing": list(schema.missing),
        "absent": list(MISSING_WORDS),
        "codes": [code for word in schema.missing if (code := as_number(word)) is not None],
    }


def _flag(column: Used, missing: bool) -> list[float]:
    """The number that says whether a cell was missing, where training had such cells."""
    return [float(missing)] if column.has_missing else []


def _numeric(column: Numeric) -> dict[str, Any]:
    scaled = float(np.clip((column.fill - column.mean) / column.std, -MAX_SCALED, MAX_SCALED))
    return {**_scaled(column, column.mean, column.std), "gone": [scaled, *_flag(column, True)]}


def _scaled(column: Used, mean: float, std: float) -> dict[str, Any]:
    rest = {"most": MAX_SCALED, "rates": [], "flag": _flag(column, False)}
    return {"name": column.name, "mean": mean, "std": std, **rest}


def _date(column: Date) -> dict[str, Any]:
    rates = [turn / PERIODS[part] for part in column.parts for turn in TURNS]
    own = None if column.date_format is None or column.date_format.startswith(ISO_DAY) else column.date_format
    gone = [0.0] * (1 + 2 * len(rates))
    scaled = {**_scaled(column, column.mean, column.std), "rates": rates}
    return {**scaled, "format": own, "zoned": column.zoned, "gone": [*gone, *_flag(column, True)]}


def _boolean(column: Boolean) -> dict[str, Any]:
    truth = dict.fromkeys(TRUE_WORDS, 1.0) | dict.fromkeys(FALSE_WORDS, 0.0)
    words = {word: [value, *_flag(column, False)] for word, value in truth.items()}
    gone = [column.fill, *_flag(column, True)]
    return {**_of_words(column.name, words, gone=gone, other=gone), "lower": True}


def _categorical(column: Categorical) -> dict[str, Any]:
    codes = np.eye(len(column.levels) + 1).tolist()
    words = {level: [*code, *_flag(column, False)] for level, code in zip(column.levels, codes, strict=False)}
    other, gone = ([*codes[-1], *_flag(column, missing)] for missing in (False, True))
    return _of_words(column.name, words, gone=gone, other=other, numbers=column.numbers)


def _ordinal(column: Ordinal) -> dict[str, Any]:
    def scaled(rank: int | float) -> float:
        return (rank - column.mean) / column.std

    words = {level: [scaled(rank), *_flag(column, False)] for rank, level in enumerate(column.levels)}
    gone = [scaled(column.fill), *_flag(column, True)]
    return _of_words(column.name, words, gone=gone, other=gone, numbers=column.numbers)


def _of_words(name: str, words: dict[str, Any], *, gone: Any, other: Any, numbers: bool = False) -> dict[str, Any]:
    return {"name": name, "words": words, "other": other, "gone": gone, "numbers": numbers, "lower": False}


def _target(target: Target) -> dict[str, Any]:
    """Numbers as they are, or the number of each class; nothing where a row has none."""
    if not target.is_class:
        return {"name": target.name, "mean": 0.0, "std": 1.0, "most": FARTHEST, "rates": [], "flag": [], "gone": []}
    words = {name: [float(i)] for i, name in enumerate(target.classes)}
    lower = sorted(name.lower() for name in words) == ["false", "true"]  # one tool writes True, another true
    numbers = all(as_number(name) is not None for name in words)
    told = {name.lower(): value for name, value in words.items()} if lower else words
    absent = [word for word in MISSING_WORDS if word not in {name.lower() for name in words}]
    return {**_of_words(target.name, told, gone=[], other=None, numbers=numbers), "lower": lower, "absent": absent}


WRITERS: dict[str, Any] = {
    "numeric": _numeric,
    "boolean": _boolean,
    "categorical": _categorical,
    "ordinal": _ordinal,
    "date": _date,
}
