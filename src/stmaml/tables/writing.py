"""Rows and their predictions as files, by the ending of the name."""

import gzip
import io
from collections.abc import Callable
from pathlib import Path

import polars as pl
import polars.selectors as cs

from stmaml.errors import SettingError, SourceError
from stmaml.tables.cells import as_written_numbers
from stmaml.tables.formats import need_extra
from stmaml.tables.schema import Schema

DIGITS = 7  # of single precision, in which all is computed
EXCEL_ROWS = 2**20 - 1  # below the header
Writer = Callable[[pl.DataFrame], bytes]


def writer_of(out: Path) -> Writer:
    """What turns a frame into the bytes of a file of that name; raises SettingError if none does."""
    found = [(ending, write) for ending, (write, _) in _WRITERS.items() if out.name.lower().endswith(ending)]
    if not found:
        raise SettingError(f"--out must end in one of {', '.join(_WRITERS)}; got '{out.name}'.")
    if found[0][0] == ".xlsx":
        need_extra("xlsxwriter", "Excel files are written")
    return found[0][1]


def form_of(out: Path) -> str:
    """What a format is called."""
    return next(form for ending, (_, form) in _WRITERS.items() if out.name.lower().endswith(ending))


def check_writable(query: pl.DataFrame, form: str) -> None:
    """Raises SourceError for what would be lost where the query's rows are to be written."""
    if form in ("Parquet", "Arrow"):
        return
    for name, dtype in query.schema.items():
        if "Binary" in str(dtype) or dtype == pl.Object or (form != "JSON" and dtype.is_nested()):
            raise SourceError(
                f"column '{name}' of the query holds {dtype} values, which {form} cannot. Write Parquet with --out "
                "FILE.parquet, or remove the column."
            )
    if form == "Excel" and query.height > EXCEL_ROWS:
        raise SourceError(
            f"the query has {query.height:,} rows, and Excel holds {EXCEL_ROWS:,}. Write CSV with --out FILE.csv."
        )


def with_numbers(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Predictions with numbers in those columns of the query that hold them, where it was read as text.

    Names of groups stay text, and so do all columns of a query that knows its types."""
    own = frame.columns[: frame.columns.index("prediction")]
    if any(frame.schema[name] != pl.String for name in own):
        return frame
    found = [as_written_numbers(frame[name], known=name in schema.numbers) for name in own if name != schema.task]
    return frame.with_columns(found)


def as_csv(frame: pl.DataFrame, separator: str = ",") -> str:
    """Rows as text: what was computed with as many digits as it has, the query's own columns as they are."""
    computed = frame.columns[frame.columns.index("prediction") :] if "prediction" in frame.columns else []
    numbers = cs.by_name(computed) & cs.float()
    plain = frame.with_columns(numbers.as_expr().round_sig_figs(DIGITS), cs.duration().dt.to_string("iso"))
    return plain.write_csv(separator=separator)


def _csv(frame: pl.DataFrame) -> bytes:
    return as_csv(frame).encode()


def _tsv(frame: pl.DataFrame) -> bytes:
    return as_csv(frame, "\t").encode()


def _packed_csv(frame: pl.DataFrame) -> bytes:
    return gzip.compress(_csv(frame), mtime=0)


def as_parquet(frame: pl.DataFrame) -> bytes:
    """The bytes of a Parquet file."""
    file = io.BytesIO()
    frame.write_parquet(file)
    return file.getvalue()


def _arrow(frame: pl.DataFrame) -> bytes:
    file = io.BytesIO()
    frame.write_ipc(file)
    return file.getvalue()


def _json_lines(frame: pl.DataFrame) -> bytes:
    return frame.write_ndjson().encode()


def _excel(frame: pl.DataFrame) -> bytes:
    file = io.BytesIO()
    plain = frame.with_columns(
        cs.float().fill_nan(None), cs.datetime(time_zone="*").cast(pl.String), cs.duration().dt.to_string("iso")
    )
    # a name that begins with = is a name
    options = {"strings_to_formulas": False, "strings_to_urls": False, "nan_inf_to_errors": True}
    with need_extra("xlsxwriter", "Excel files are written").Workbook(file, options) as book:
        plain.write_excel(book, float_precision=6, autofit=plain.height < 10_000)
    return file.getvalue()


_WRITERS: dict[str, tuple[Writer, str]] = {
    ".csv": (_csv, "CSV"),
    ".csv.gz": (_packed_csv, "CSV"),
    ".tsv": (_tsv, "CSV"),
    ".parquet": (as_parquet, "Parquet"),
    ".pq": (as_parquet, "Parquet"),
    ".feather": (_arrow, "Arrow"),
    ".arrow": (_arrow, "Arrow"),
    ".ipc": (_arrow, "Arrow"),
    ".jsonl": (_json_lines, "JSON"),
    ".ndjson": (_json_lines, "JSON"),
    ".xlsx": (_excel, "Excel"),
}
