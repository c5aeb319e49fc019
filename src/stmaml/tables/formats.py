"""Files of tables that know the types of their columns: Parquet, Arrow, JSON lines, Excel."""

import importlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from stmaml.border.files import read_file
from stmaml.errors import SourceError, forbidden
from stmaml.tables.delimited import read_csv
from stmaml.tables.parts import Part, Reading, first_line, places, tidy

PARQUET_ENDINGS = (".parquet", ".pq")
ARROW_ENDINGS = (".feather", ".arrow", ".ipc")
JSON_ENDINGS = (".jsonl", ".ndjson")
EXCEL_ENDINGS = (".xlsx",)
TYPED_ENDINGS = PARQUET_ENDINGS + ARROW_ENDINGS + JSON_ENDINGS + EXCEL_ENDINGS


def read_part(part: Part, reading: Reading) -> pl.DataFrame:
    """The rows of one file that is not compressed, by the ending of its name."""
    readers = {
        PARQUET_ENDINGS: _read_parquet,
        ARROW_ENDINGS: _read_arrow,
        JSON_ENDINGS: _read_json_lines,
        EXCEL_ENDINGS: _read_excel,
    }
    fitting = (read for endings, read in readers.items() if part.label.lower().endswith(endings))
    return next(fitting, read_csv)(part, reading)


def _read_parquet(part: Part, reading: Reading) -> pl.DataFrame:
    with whole(part.label, "Parquet"):
        header = [name.strip() for name in pl.read_parquet_schema(_source(part))]
        found = places(part.label, header, reading.columns)
        frame = pl.read_parquet(_source(part), columns=found)
    return tidy(frame, reading.columns)


def _read_arrow(part: Part, reading: Reading) -> pl.DataFrame:
    with whole(part.label, "Arrow"):
        header = [name.strip() for name in pl.read_ipc_schema(_source(part))]
        found = places(part.label, header, reading.columns)
        frame = pl.read_ipc(_source(part), columns=found)
    return tidy(frame, reading.columns)


def _read_json_lines(part: Part, reading: Reading) -> pl.DataFrame:
    with whole(part.label, "JSON lines"):
        frame = pl.read_ndjson(_source(part), infer_schema_length=None)
    return _picked(part, frame, reading)


def _read_excel(part: Part, reading: Reading) -> pl.DataFrame:
    engine = need_extra("fastexcel", "Excel files are read")
    with whole(part.label, "Excel", engine.FastExcelError):
        sheets = engine.read_excel(_bytes(part)).sheet_names
        if not sheets:
            raise SourceError(f"{part.label} has no sheet. Write it again.")
        if reading.sheet not in (None, *sheets):
            raise SourceError(f"{part.label} has no sheet '{reading.sheet}'; it has: {', '.join(sheets)}.")
        frame = pl.read_excel(_source(part), sheet_name=reading.sheet or sheets[0], infer_schema_length=None)
    return _picked(part, frame, reading)


def _picked(part: Part, frame: pl.DataFrame, reading: Reading) -> pl.DataFrame:
    """Of all columns that were read, those that are asked for."""
    places(part.label, [name.strip() for name in frame.columns], reading.columns)
    return tidy(frame, reading.columns)


def need_extra(module: str, what: str) -> Any:
    """A module that only the extra `excel` installs; raises SourceError where it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        install = "pip install '.[excel]' in the folder of the package"
        raise SourceError(f"{what} with {module}, which is not installed: {install}.") from error


def _source(part: Part) -> Path | io.BytesIO:
    return io.BytesIO(part.content) if isinstance(part.content, bytes) else part.content


def _bytes(part: Part) -> bytes:
    return part.content if isinstance(part.content, bytes) else read_file(part.content)


@contextmanager
def whole(label: str, form: str, *damage: type[Exception]) -> Iterator[None]:
    """Turns the errors of a damaged file, and the panics of polars over it, into one that names it."""
    try:
        yield
    except PermissionError as error:
        raise SourceError(forbidden(label)) from error
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, *damage) as error:
        raise SourceError(
            f"{label} is not a whole {form} file ({first_line(error)}). Write or fetch it again."
        ) from error
