"""Reading tables: every format, and one clear sentence for every way a file can be wrong."""

import datetime as dt
import gzip
import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stmaml.errors import SourceError
from stmaml.progress import Told, listening
from stmaml.tables.parts import Reading
from stmaml.tables.reading import group_rows, read_table, row_list
from stmaml.tables.writing import writer_of

ROWS = "shop,day,sales\na,1,2.5\nb,2,3.5\na,3,\n"


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def tar_of(path: Path, members: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def expected() -> pl.DataFrame:
    return pl.DataFrame({"shop": ["a", "b", "a"], "day": ["1", "2", "3"], "sales": ["2.5", "3.5", None]})


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_found(tmp_path, expected, separator):
    assert read_table([write(tmp_path / "t.csv", ROWS.replace(",", separator))]).equals(expected)


def test_a_comma_inside_semicolon_separated_cells_is_no_separator(tmp_path):
    table = read_table([write(tmp_path / "t.csv", "name, long;value;x\nmiller, a;1;2\nsmith;3;4\n")])
    assert table.columns == ["name, long", "value", "x"]


def test_gzip_zip_tar_folder_and_parquet_give_the_same_rows(tmp_path, expected):
    packed = write(tmp_path / "t.csv.gz", gzip.compress(ROWS.encode()))
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("inner/t.csv", ROWS)
        archive.writestr("readme.md", "not a table")
    tarred = tar_of(tmp_path / "t.tar.gz", {"t.csv": ROWS})
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "t.csv", ROWS)
    expected.write_parquet(tmp_path / "t.parquet")
    for path in (packed, tmp_path / "t.zip", tarred, tmp_path / "folder", tmp_path / "t.parquet"):
        assert read_table([path]).equals(expected), path


@pytest.mark.parametrize("ending", ["feather", "arrow", "ipc", "jsonl", "ndjson", "tsv", "xlsx"])
def test_other_formats_give_the_same_rows(tmp_path, expected, ending):
    path = tmp_path / f"t.{ending}"
    path.write_bytes(content_of(expected, ending))
    assert read_table([path]).equals(expected)
    assert read_table([path], Reading(columns=("sales", "shop"))).columns == ["sales", "shop"]
    with pytest.raises(SourceError, match=r"no column 'Sale'; did you mean 'sales'\? It has: shop, day, sales"):
        read_table([path], Reading(columns=("shop", "Sale")))
    (tmp_path / "folder").mkdir()
    path.rename(tmp_path / "folder" / path.name)
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.write(tmp_path / "folder" / path.name, path.name)
    for place in (tmp_path / "folder", tmp_path / "t.zip"):
        assert read_table([place]).equals(expected)


def content_of(frame: pl.DataFrame, ending: str) -> bytes:
    if ending == "xlsx":
        pytest.importorskip("fastexcel")
        pytest.importorskip("xlsxwriter")
    return writer_of(Path(f"t.{ending}"))(frame)


def test_a_sheet_is_named_or_the_first(tmp_path):
    pytest.importorskip("fastexcel")
    workbook = pytest.importorskip("xlsxwriter").Workbook
    with workbook(tmp_path / "t.xlsx") as book:
        pl.DataFrame({"a": [1, None], "b": ["x", "1"]}).write_excel(book, worksheet="one")
        pl.DataFrame({"c": [2.5], "d": [dt.date(2020, 1, 3)]}).write_excel(book, worksheet="two")
    assert read_table([tmp_path / "t.xlsx"]).rows() == [(1, "x"), (None, "1")]
    assert read_table([tmp_path / "t.xlsx"], Reading(sheet="two")).rows() == [(2.5, dt.date(2020, 1, 3))]
    with pytest.raises(SourceError, match=r"t\.xlsx has no sheet 'three'; it has: one, two"):
        read_table([tmp_path / "t.xlsx"], Reading(sheet="three"))


def test_the_extra_is_named_where_excel_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastexcel", None)
    with pytest.raises(SourceError, match=r"with fastexcel, which is not installed: pip install '.\[excel\]'"):
        read_table([write(tmp_path / "t.xlsx", b"PK")])


@pytest.mark.parametrize("ending", ["feather", "jsonl", "xlsx"])
def test_a_damaged_file_of_another_format_is_named(tmp_path, expected, ending):
    content = content_of(expected, ending)
    path = write(tmp_path / f"t.{ending}", content[: len(content) - 40])
    with pytest.raises(SourceError, match=rf"t\.{ending} is not a whole .* file \(") as error:
        read_table([path])
    assert "\n" not in str(error.value)


def test_many_files_are_one_table_whatever_the_order_of_their_columns(tmp_path):
    first = write(tmp_path / "1.csv", "shop,day,sales\na,1,2\n")
    second = write(tmp_path / "2.csv", "sales,shop,day\n4,b,3\n")
    assert read_table([first, second]).rows() == [("a", "1", "2"), ("b", "3", "4")]


def test_only_the_columns_asked_for_are_read(tmp_path):
    table = read_table([write(tmp_path / "t.csv", ROWS)], Reading(columns=("shop", "sales")))
    assert table.columns == ["shop", "sales"]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path, expected):
    assert read_table([write(tmp_path / "t.csv", b"\xef\xbb\xbf" + ROWS.encode())]).equals(expected)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_blanks_around_names_are_no_part_of_them(tmp_path, ending):
    path = tmp_path / f"t.{ending}"

    def save(text: str) -> None:
        frame = pl.read_csv(io.StringIO(text), infer_schema=False)
        write(path, text) if ending == "csv" else frame.write_parquet(path)

    save("shop, day ,  sales\na,1,2.5\n")
    assert read_table([path]).rows(named=True) == [{"shop": "a", "day": "1", "sales": "2.5"}]
    assert read_table([path], Reading(columns=("sales", "day"))).rows(named=True) == [{"sales": "2.5", "day": "1"}]
    save("shop, shop,sales\na,b,2.5\n")
    with pytest.raises(SourceError, match="two columns named 'shop'"):
        read_table([path])


def test_quotes_in_names_are_those_meant(tmp_path):
    frame = pl.DataFrame({"shop": ["a"], 'size "L", cm': ["1"], "größe": ['say "x"']})
    path = write(tmp_path / "t.csv", frame.write_csv())
    assert read_table([path]).equals(frame)
    assert read_table([path], Reading(columns=('size "L", cm',))).columns == ['size "L", cm']


def test_one_column_will_do_where_it_is_known(tmp_path):
    path = write(tmp_path / "t.csv", "price per kg\n1.5\n\n2\n")
    table = read_table([path], Reading(known=("shop", "price per kg")))
    assert table.to_dict(as_series=False) == {"price per kg": ["1.5", None, "2"]}
    with pytest.raises(SourceError, match="single column 'price per kg'"):
        read_table([path], Reading(known=("shop", "price")))


def test_a_header_alone_will_do_where_no_rows_are_needed(tmp_path):
    table = read_table([write(tmp_path / "t.csv", "shop,sales\n")], Reading(may_be_empty=True))
    assert (table.columns, table.height) == (["shop", "sales"], 0)


def test_text_stored_as_bytes_is_text_and_other_bytes_are_left(tmp_path):
    pl.DataFrame({"a": [b"x", None], "b": [b"\xff", b"x"]}).write_parquet(tmp_path / "t.parquet")
    table = read_table([tmp_path / "t.parquet"])
    assert table["a"].to_list() == ["x", None]
    assert table["b"].dtype == pl.Binary


def test_rows_are_listed_by_number():
    assert row_list(pl.Series([False, True])) == "row 2"
    assert row_list(pl.Series([True] * 7)) == "rows 1, 2, 3, 4, 5 and others"


def test_reading_an_archive_tells_how_far_it_is(tmp_path):
    path = tar_of(tmp_path / "t.tar.gz", {"1.csv": ROWS, "2.csv": ROWS})
    told: list[Told] = []
    with listening(told.append):
        read_table([path])
    assert {one.what for one in told} == {"reading t.tar.gz"}
    assert all(0 < one.done <= one.total == path.stat().st_size for one in told)


BAD_FILES = {
    "empty": (b"", "is empty or starts with an empty line"),
    "header alone": (b"shop,sales\n", "has a header but no rows"),
    "duplicate names": (b"shop,sales,shop\na,1,b\n", "two columns named 'shop'"),
    "one column": (b"shop day sales\na 1 2\n", "single column 'shop day sales'.*--delimiter"),
    "latin-1": ("shop,sales\nm\xfcller,2\n".encode("latin-1"), "not UTF-8.*iconv"),
    "latin-1 header": ("sh\xf6p,sales\na,2\n".encode("latin-1"), "not UTF-8"),
    "utf-16": ("shop,sales\na,2\n".encode("utf-16"), "not UTF-8 text .it looks like UTF-16"),
    "more cells than columns": (b"shop,sales\na,1\nb,2,3\n", "more fields than its header"),
    "open quote": (b'shop,sales\n"a,1\nb,2\n', "cannot be read as CSV"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_told_in_one_line(tmp_path, name):
    content, message = BAD_FILES[name]
    with pytest.raises(SourceError, match=message) as error:
        read_table([write(tmp_path / "bad.csv", content)])
    assert "\n" not in str(error.value)
    assert "bad.csv" in str(error.value)


def test_a_given_delimiter_that_does_not_split_is_named(tmp_path):
    with pytest.raises(SourceError, match="when split at semicolons"):
        read_table([write(tmp_path / "t.csv", ROWS)], Reading(delimiter=";"))
    with pytest.raises(SourceError, match="must be one character; got 'ab'"):
        read_table([write(tmp_path / "t.csv", ROWS)], Reading(delimiter="ab"))


def test_a_missing_column_is_answered_with_those_there_are(tmp_path):
    for path in (write(tmp_path / "t.csv", ROWS), tmp_path / "t.parquet"):
        if path.suffix == ".parquet":
            pl.DataFrame({"shop": [1], "day": [2], "sales": [3]}).write_parquet(path)
        with pytest.raises(SourceError, match="no column 'price'; it has: shop, day, sales"):
            read_table([path], Reading(columns=("shop", "price")))


def test_files_of_different_tables_are_refused(tmp_path):
    first, second = write(tmp_path / "1.csv", "a,b\n1,2\n"), write(tmp_path / "2.csv", "a,c\n1,2\n")
    with pytest.raises(SourceError, match=r"2\.csv has other columns than the files before it: 'b'"):
        read_table([first, second])


def test_parquet_files_of_different_types_are_refused(tmp_path):
    pl.DataFrame({"a": [1], "b": [2]}).write_parquet(tmp_path / "1.parquet")
    pl.DataFrame({"a": ["x"], "b": [[2]]}).write_parquet(tmp_path / "2.parquet")
    with pytest.raises(SourceError, match="different types in one column"):
        read_table([tmp_path / "1.parquet", tmp_path / "2.parquet"])


def test_a_path_that_is_not_there_or_holds_no_table(tmp_path):
    with pytest.raises(SourceError, match=r"there is no file .*gone\.csv"):
        read_table([tmp_path / "gone.csv"])
    with pytest.raises(SourceError, match="no CSV, Parquet, Arrow, JSON lines or Excel file"):
        read_table([tmp_path])
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("readme.md", "nothing")
    with pytest.raises(SourceError, match=r"archive .*t\.zip has no CSV"):
        read_table([tmp_path / "t.zip"])


@pytest.mark.parametrize("kind", ["tar.gz", "zip", "csv.gz", "parquet"])
def test_a_damaged_file_is_named(tmp_path, kind):
    path = tmp_path / f"t.{kind}"
    text = "shop,sales\n" + "".join(f"{i},{i * 0.37}\n" for i in range(20_000))
    if kind == "tar.gz":
        tar_of(path, {"1.csv": text, "2.csv": text[::-1].replace("\n", ",\n")})
    elif kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("1.csv", text)
    elif kind == "csv.gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        pl.DataFrame({"shop": np.arange(1000), "sales": np.arange(1000)}).write_parquet(path)
    content = bytearray(path.read_bytes())
    if kind in ("zip", "parquet"):
        content[len(content) // 3 : len(content) // 3 + 40] = bytes(40)
    if kind != "zip":
        content = content[: len(content) // 2]
    path.write_bytes(bytes(content))
    with pytest.raises(SourceError, match=f"t.{kind}.* (is damaged or cut short|is not a whole Parquet)") as error:
        read_table([path])
    assert "\n" not in str(error.value)


def test_an_archive_cut_short_behind_its_last_file_is_noticed(tmp_path):
    """More files may have followed it; only the end of the compressed stream tells."""
    path = tar_of(tmp_path / "t.tar.gz", {"1.csv": ROWS})
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(SourceError, match=r"t.tar.gz is damaged or cut short after 1.csv \("):
        read_table([path])


def test_groups_keep_their_rows_in_order_and_leave_out_rows_without_key():
    groups = group_rows(pl.Series(["b", "a", None, "b", "c", "a", "b"]))
    assert groups.names == ("b", "a", "c")
    assert [groups.rows(i).tolist() for i in range(3)] == [[0, 3, 6], [1, 5], [4]]
    assert groups.start.tolist() == [0, 3, 5]
    assert groups.index == {"b": 0, "a": 1, "c": 2}


def refuse_to(monkeypatch, module: object, name: str, closed: Path) -> None:
    """Has the system deny what is asked of one path, as it does to all but its owner."""
    usual = getattr(module, name)

    def refusing(path, *others, **how):
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return usual(path, *others, **how)

    monkeypatch.setattr(module, name, refusing)


@pytest.mark.parametrize("inner", ["", "closed"])
def test_a_folder_that_may_not_be_listed_says_so(tmp_path, monkeypatch, inner):
    (tmp_path / "closed").mkdir()
    write(tmp_path / "a.csv", ROWS)
    refuse_to(monkeypatch, os, "scandir", tmp_path / inner)
    with pytest.raises(SourceError, match=r"may not be read: permission denied. Change its permissions") as error:
        read_table([tmp_path])
    assert str(error.value).startswith(f"the folder {tmp_path / inner} ")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tar.gz", "a.xlsx"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch, name):
    if name.endswith("xlsx"):
        pytest.importorskip("fastexcel")
    closed = write(tmp_path / name, ROWS)
    refuse_to(monkeypatch, Path, "open", closed)
    refuse_to(monkeypatch, os, "open", closed)
    with pytest.raises(SourceError, match=r"may not be read: permission denied. Change its permissions"):
        read_table([closed])


def test_a_parquet_file_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    closed = write(tmp_path / "a.parquet", ROWS)
    refuse_to(monkeypatch, pl, "read_parquet_schema", closed)
    with pytest.raises(SourceError, match=r"may not be read: permission denied. Change its permissions"):
        read_table([closed])
