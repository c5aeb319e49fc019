"""Rows of NOAA's station files, from text to numbers as printed, and what is wrong with those left out."""

import csv
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stmaml.data.problems import Problems
from stmaml.data.stations import COLUMNS, FLAGS, MISSING, NAMES, STP_GAP, Column

if TYPE_CHECKING:  # a machine that only opens what was read before needs no polars
    import polars as pl

UNREADABLE_ROW = "unreadable row"
UNREADABLE_VALUE = "unreadable value"
OUT_OF_RANGE = "out-of-range value"
OTHER_YEAR = "date outside the year"
NO_TEMPERATURE = "no temperature"
DUPLICATE_DATE = "duplicate date"
NO_USABLE_ROW = "no usable row"
PLACE = {"LATITUDE": 90.0, "LONGITUDE": 180.0, "ELEVATION": 9000.0}  # with the largest believable magnitude
REQUIRED = ("DATE", *PLACE, "NAME", *NAMES, "FRSHTT")
OBSERVATIONS = "STP_ATTRIBUTES"  # tells a station pressure of 999.9 mbar from the code for none


class Member(NamedTuple):
    """A file whose header is known to hold all columns."""

    label: str
    station: str
    year: int | None
    lines: bytes  # its rows, without blank lines or a final line end


class Part(NamedTuple):
    """What became of one batch: arrays named as in `Stations`, without offsets."""

    arrays: dict[str, np.ndarray]
    problems: Problems


def parse(header: tuple[str, ...], batch: list[Member]) -> Part:
    """The arrays of a batch's good rows, and what was wrong with the others."""
    import polars as pl

    problems = Problems()
    table = _table(header, batch, problems)
    numbers = [*PLACE, *NAMES, "FRSHTT", *([OBSERVATIONS] if OBSERVATIONS in header else [])]
    table = table.with_columns(pl.col("DATE", *numbers).str.strip_chars())
    written = {name: (table[name].fill_null("") != "").to_numpy() for name in numbers}
    table = table.with_columns(pl.col(numbers).cast(pl.Float64, strict=False), DATE=_dates(table["DATE"]))
    values = {name: table[name].cast(pl.Float64).to_numpy() for name in numbers}
    member = table["member"].cast(pl.Int64).to_numpy()
    date = table["DATE"].to_numpy().astype("datetime64[D]")
    keep = _keep(_Blame(batch, member, problems), date, values["TEMP"], written["TEMP"])
    member, date = member[keep], date[keep]
    values = {name: column[keep] for name, column in values.items()}
    written = {name: flag[keep] for name, flag in written.items()}
    blame = _Blame(batch, member, problems)

    firsts, counts = np.unique(member, return_index=True, return_counts=True)[1:]
    kept = member[firsts]
    for index in sorted(set(range(len(batch))) - set(kept.tolist())):
        problems.add(NO_USABLE_ROW, batch[index].label)
    years = date.astype("datetime64[Y]")
    day = (date - years.astype("datetime64[D]")).astype(np.int16)
    arrays = {
        "station": np.array([batch[index].station for index in kept], dtype="U11"),
        "year": (years[firsts].astype(np.int64) + 1970).astype(np.int16),
        "name": np.array([str(name or "").strip() for name in table["NAME"][keep[firsts]]], dtype=np.str_),
        "count": counts.astype(np.int32),
        "label": np.array([batch[index].label for index in kept], dtype=np.str_),
        "day": day,
        "readings": np.stack([_whole(column, values, written, blame) for column in COLUMNS], axis=1),
        "flags": _bits(values["FRSHTT"], written["FRSHTT"], blame),
    }
    for name, largest in PLACE.items():
        arrays[name.lower()] = _place(name, largest, values[name], written[name], blame)[firsts]
    return Part(arrays, problems)


def _dates(text: "pl.Series") -> "pl.Series":
    """Dates as the files write them, or else as NOAA's readme does."""
    dates = text.str.to_date("%Y-%m-%d", strict=False)
    if dates.null_count() > text.null_count():
        dates = dates.fill_null(text.str.to_date("%m/%d/%Y", strict=False))
    return dates


def _table(header: tuple[str, ...], batch: list[Member], problems: Problems) -> "pl.DataFrame":
    """The batch's rows as text, with the index of each row's member; as fast as the files are clean."""
    import polars as pl

    places = {name: header.index(name) for name in (*REQUIRED, OBSERVATIONS) if name in header}
    tags = (b"%d," % index for index in range(len(batch)))
    tagged = b"\n".join(tag + m.lines.replace(b"\n", b"\n" + tag) for tag, m in zip(tags, batch, strict=True))
    fields = [f"column_{index}" for index in range(1, len(header) + 2)]  # the names polars wants where there are none
    tag, *texts = fields
    schema = dict.fromkeys(fields, pl.String)
    try:
        table = pl.read_csv(tagged, has_header=False, schema=schema)
    except pl.exceptions.PolarsError:
        table = pl.DataFrame(schema=schema)
    expected = np.array([member.lines.count(b"\n") + 1 for member in batch])
    owners = table[tag].cast(pl.Int64, strict=False).drop_nulls().to_numpy()
    cut_short = table[texts[-1]].is_null().any()
    if np.array_equal(np.bincount(owners, minlength=len(batch)), expected) and not cut_short:
        return table.select(pl.col(tag).alias("member"), *(pl.col(texts[at]).alias(n) for n, at in places.items()))
    if len(batch) > 1:  # some member is malformed: only that one is to be read line by line
        tables = (_table(header, [member], problems) for member in batch)
        return pl.concat([table.with_columns(member=pl.lit(str(index))) for index, table in enumerate(tables)])
    return _table_by_line(len(header), places, batch[0], problems)


def _table_by_line(width: int, places: dict[str, int], member: Member, problems: Problems) -> "pl.DataFrame":
    """The readable rows of one member, judged line by line."""
    import polars as pl

    rows = []
    for number, line in enumerate(member.lines.decode("utf-8", "replace").split("\n"), start=2):
        try:
            row = next(csv.reader([line], strict=True), [])
        except csv.Error:
            row = []
        if len(row) == width:
            rows.append(["0", *(row[place] for place in places.values())])
        else:
            problems.add(UNREADABLE_ROW, f"{member.label} line {number}")
    return pl.DataFrame(rows, schema=dict.fromkeys(("member", *places), pl.String), orient="row")


class _Blame:
    """Counts the problems of rows under the labels of their files."""

    def __init__(self, batch: list[Member], member: np.ndarray, problems: Problems):
        self.batch, self.member, self.problems = batch, member, problems

    def __call__(self, kind: str, rows: np.ndarray, detail: str = "") -> None:
        """Counts the rows that are true in `rows`."""
        for index, count in zip(*np.unique(self.member[rows], return_counts=True), strict=True):
            self.problems.add(kind, f"{self.batch[index].label}{detail}", int(count))


def _keep(blame: "_Blame", date: np.ndarray, temperature: np.ndarray, written: np.ndarray) -> np.ndarray:
    """Indices of the rows with a believable temperature on a day of the file's year, by member and day."""
    batch, member = blame.batch, blame.member
    good = np.ones(len(member), dtype=bool)

    def drop(kind: str, rows: np.ndarray, detail: str = "") -> None:
        nonlocal good
        blame(kind, good & rows, detail)
        good = good & ~rows

    drop(UNREADABLE_ROW, np.isnat(date) | (written & ~np.isfinite(temperature)))
    row_year = np.where(good, date.astype("datetime64[Y]").astype(np.int64) + 1970, 0)
    years = np.array([m.year or _most_common(row_year[(member == i) & good]) for i, m in enumerate(batch)])
    drop(OTHER_YEAR, row_year != years[member])
    column = COLUMNS[0]
    drop(NO_TEMPERATURE, ~written | np.isin(temperature, column.missing))
    drop(OUT_OF_RANGE, ~((temperature >= column.low) & (temperature <= column.high)), " TEMP")
    rows = np.flatnonzero(good)
    rows = rows[np.lexsort((date[rows], member[rows]))]  # stable: the first of equal dates stays first
    again = np.zeros(len(rows), dtype=bool)
    again[1:] = (member[rows][1:] == member[rows][:-1]) & (date[rows][1:] == date[rows][:-1])
    _Blame(batch, member[rows], blame.problems)(DUPLICATE_DATE, again)
    return rows[~again]


def _most_common(years: np.ndarray) -> int:
    """The year most rows have; 0 for none."""
    values, counts = np.unique(years, return_counts=True)
    return int(values[counts.argmax()]) if len(values) else 0


def _whole(column: Column, values: dict[str, np.ndarray], written: dict[str, np.ndarray], blame: _Blame) -> np.ndarray:
    """A column in tenths or hundredths, `MISSING` where there is none."""
    value = values[column.name]
    measured = written[column.name] & np.isfinite(value)
    blame(UNREADABLE_VALUE, written[column.name] & ~measured, f" {column.name}")
    coded = np.isin(value, column.missing)
    if column.name == "STP" and OBSERVATIONS in values:
        coded &= ~((value == column.missing[0]) & (values[OBSERVATIONS] > 0))  # a pressure of 999.9, measured
    measured &= ~coded
    believable = (value >= column.low) & (value <= column.high)
    if column.name == "STP":
        believable &= (value < STP_GAP[0]) | (value > STP_GAP[1])
    blame(OUT_OF_RANGE, measured & ~believable, f" {column.name}")
    measured &= believable
    return np.where(measured, np.rint(np.where(measured, value, 0) * column.scale), MISSING).astype(np.int16)


def _bits(value: np.ndarray, written: np.ndarray, blame: _Blame) -> np.ndarray:
    """FRSHTT's decimal digits as bits; none set where it cannot be read."""
    known = np.isfinite(value) & (value >= 0) & (value <= 111_111)
    number = np.where(known, value, 0).astype(np.int64)
    digits = [number // 10**place % 10 for place in range(len(FLAGS))]
    binary = known & (np.max(digits, axis=0) <= 1)
    blame(UNREADABLE_VALUE, written & ~binary, " FRSHTT")
    return np.where(binary, sum(digit << place for place, digit in enumerate(digits)), 0).astype(np.uint8)


def _place(name: str, largest: float, value: np.ndarray, written: np.ndarray, blame: _Blame) -> np.ndarray:
    """A coordinate, NaN where it is empty or impossible."""
    blame(UNREADABLE_VALUE, written & ~np.isfinite(value), f" {name}")
    impossible = np.abs(value) > largest
    blame(OUT_OF_RANGE, impossible, f" {name}")
    return np.where(np.isfinite(value) & ~impossible, value, np.nan)
