"""A schema that was inferred from some groups of a large table, mended by what a pass over all rows has shown."""

import dataclasses

import numpy as np
import polars as pl

from stmaml.errors import SourceError
from stmaml.tables import cells
from stmaml.tables.columns import Column, Dropped, Numeric
from stmaml.tables.oddities import MAX_SPREADS, far_codes, fences, refuse_codes
from stmaml.tables.ondisk.survey import Moments, Survey
from stmaml.tables.schema import Schema
from stmaml.tables.target import MAX_CLASSES, Target, WantedTarget, class_order


def wanted_kind(kind: WantedTarget, survey: Survey) -> WantedTarget:
    """What a target is by all its rows: some groups may have two values of many."""
    if kind != "auto" or not survey.words_are_missing:
        return kind
    return "classification" if len(survey.labels) == 2 else "regression"


def mended(schema: Schema, survey: Survey, frame: pl.DataFrame, *, scales: bool) -> Schema:
    """The schema with indicators wherever a cell is missing, all classes and, with `scales`, exact means and spreads;
    but not of columns with values beyond the fences of the sample, whose scales stay robust."""
    columns = tuple(_column(column, survey, frame, schema, scales) for column in schema.columns)
    return dataclasses.replace(schema, columns=columns, target=_target(schema, survey, frame, scales))


def _column(column: Column, survey: Survey, frame: pl.DataFrame, schema: Schema, scales: bool) -> Column:
    found = survey.columns.get(column.name)
    if found is None or isinstance(column, Dropped):
        return column
    column = dataclasses.replace(column, has_missing=column.has_missing or found.missing > 0)
    if scales and isinstance(column, Numeric) and _inside(found, frame[column.name], schema):
        return dataclasses.replace(column, mean=found.mean, std=found.std)
    return column


def _inside(found: Moments, series: pl.Series, schema: Schema) -> bool:
    """Whether no value lies so far out that it must not set the scale."""
    known = cells.as_numbers(series, schema.missing).drop_nulls().to_numpy()
    if found.count == 0 or found.std == 0 or known.size == 0:
        return False
    low, high = fences(known)
    return low <= found.low and found.high <= high


def _target(schema: Schema, survey: Survey, frame: pl.DataFrame, scales: bool) -> Target:
    target = schema.target
    if target.is_class:
        return dataclasses.replace(target, classes=_classes(target, survey))
    found = survey.columns[target.name]
    if scales and _inside(found, frame[target.name], schema):
        return dataclasses.replace(target, mean=found.mean, std=found.std)
    return target


def _classes(target: Target, survey: Survey) -> tuple[str, ...]:
    if not survey.labels:
        raise SourceError(
            f"the target '{target.name}' has more than {MAX_CLASSES} classes, such as '{target.classes[0]}'. Make it a "
            "number for regression, or join classes."
        )
    labels = pl.Series(survey.labels)
    known = labels.filter(~cells.is_missing_word(labels)) if survey.words_are_missing else labels
    return tuple(sorted(known.to_list(), key=class_order))


def check_ends(name: str, sample: pl.Series, found: Moments, *, keep_codes: bool) -> None:
    """Raises SourceError for a lowest or highest target that must not be learnt, though no sampled row may hold it."""
    if found.count == 0:
        return
    ends = [found.low] * min(found.low_rows, 2) + [found.high] * min(found.high_rows, 2)
    if not keep_codes:
        refuse_codes(name, far_codes(pl.concat([sample, pl.Series(ends, dtype=pl.Float64)])))
    low, middle, high = np.quantile(sample.drop_nulls().to_numpy(), [0.05, 0.5, 0.95])
    furthest = max(found.low, found.high, key=lambda end: abs(end - middle))
    if high > low and abs(furthest - middle) > MAX_SPREADS * (high - low):
        raise SourceError(
            f"the target '{name}' holds {furthest:.6g}, {abs(furthest - middle) / (high - low):.1g} spreads from the "
            "others. Correct it, or leave the cell empty."
        )
