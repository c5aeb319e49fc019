"""Text in columns: CSV and its kin, whatever separates the cells."""

import csv

import polars as pl

from stmaml.errors import SourceError
from stmaml.tables.parts import Part, Reading, first_line, places, tidy

DELIMITERS = (",", ";", "\t", "|")


def read_csv(part: Part, reading: Reading) -> pl.DataFrame:
    """The cells of a CSV file, all as text."""
    delimiter, header = layout(part, reading)
    found = places(part.label, header, reading.columns)
    try:
        frame = pl.read_csv(part.content, separator=delimiter, columns=found, infer_schema=False, glob=False)
    except pl.exceptions.PolarsError as error:
        raise SourceError(csv_complaint(part.label, delimiter, error)) from error
    names = header if found is None else [header[place] for place in found]
    if len(names) == frame.width:  # polars leaves doubled quotes in names as they stand
        frame = frame.rename(dict(zip(frame.columns, names, strict=True)))
    return tidy(frame, reading.columns)


def layout(part: Part, reading: Reading) -> tuple[str, list[str]]:
    """What separates the columns of a CSV file, and their names."""
    lines = _first_lines(part)
    delimiter = reading.delimiter or _delimiter(lines)
    header = [name.strip() for name in _fields(lines[0], delimiter)]
    if len(header) < 2 and not (header and header[0] in reading.known):
        raise SourceError(
            f"{part.label} has a single column '{_short(lines[0])}' when split at {_called(delimiter)}. Name what "
            "separates its columns with --delimiter."
        )
    return delimiter, header


def csv_complaint(label: str, delimiter: str, error: Exception) -> str:
    """What to say of a file that polars cannot read."""
    if "utf-8" in str(error):
        return f"{label} is not UTF-8 text. Save it in UTF-8, for instance with 'iconv -f latin1 -t utf-8'."
    if "more fields" in str(error):
        return (
            f"{label} has a row with more fields than its header when split at {_called(delimiter)}. Quote cells that "
            "hold the separator, or name another with --delimiter."
        )
    return f"{label} cannot be read as CSV ({first_line(error)}). Check its quotes and separators."


def _first_lines(part: Part) -> list[str]:
    """The header and the row below it, as text."""
    if isinstance(part.content, bytes):
        raw = part.content.split(b"\n", 2)[:2]
    else:
        with part.content.open("rb") as file:
            raw = [file.readline(2**20) for _ in range(2)]
    if not raw[0].strip():
        raise SourceError(f"{part.label} is empty or starts with an empty line. Give a table with a header line.")
    if raw[0].startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in raw[0]:
        raise SourceError(f"{part.label} is not UTF-8 text (it looks like UTF-16 or a binary file). Save it in UTF-8.")
    try:
        return [line.decode("utf-8-sig").rstrip("\r\n") for line in raw if line.strip()]
    except UnicodeDecodeError as error:
        raise SourceError(csv_complaint(part.label, ",", Exception("utf-8"))) from error


def _delimiter(lines: list[str]) -> str:
    """The separator that splits the header into most columns, and the first row into as many."""

    def fit(delimiter: str) -> tuple[bool, int]:
        counts = [len(_fields(line, delimiter)) for line in lines]
        return len(set(counts)) == 1, counts[0]

    able = [delimiter for delimiter in DELIMITERS if fit(delimiter)[1] > 1]
    return max(able, key=fit) if able else ","


def _fields(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter))
    except (csv.Error, TypeError, StopIteration) as error:
        raise SourceError(f"--delimiter must be one character; got {delimiter!r}.") from error


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _called(delimiter: str) -> str:
    return {",": "commas", ";": "semicolons", "\t": "tabs", "|": "|"}.get(delimiter, repr(delimiter))
