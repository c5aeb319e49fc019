"""Files, archives and pictures of a stranger: refused in a sentence, at once, and without a program being started."""

import gzip
import io
import lzma
import os
import struct
import subprocess
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from stmaml.border.arrays import MARK, pack_arrays, unpack_arrays
from stmaml.border.files import SMALL_BYTES, gunzip, open_file, read_file
from stmaml.border.pictures import MAX_PIXELS, open_picture
from stmaml.data import archives
from stmaml.data.archives import Bounds, members
from stmaml.data.faces import read_faces
from stmaml.data.idx import read_grey_folder, read_split
from stmaml.data.noaa import read_stations
from stmaml.data.picture_decoding import UNREADABLE
from stmaml.data.pictures import decode_pictures
from stmaml.errors import SourceError
from stmaml.tables.reading import read_table

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))


def tar_of(path: Path, *entries: tuple[tarfile.TarInfo, bytes], packed: bool = False) -> Path:
    with tarfile.open(path, "w:gz" if packed else "w") as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return path


def info(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size, made.type = size, kind
    return made


def read_all(archive: Path, bounds: Bounds | None = None) -> dict[str, bytes]:
    return {name: content for name, content, _ in members(archive, bounds=bounds or Bounds())}


@pytest.fixture
def _no_program(monkeypatch):
    def started(*words, **more):
        raise AssertionError(f"a program was started: {words}")

    for module, name in ((subprocess, "Popen"), (subprocess, "call"), (subprocess, "check_call"), (os, "system")):
        monkeypatch.setattr(module, name, started)


@pytest.mark.usefixtures("_no_program")
def test_an_eps_that_calls_itself_a_jpeg_starts_no_program(tmp_path):
    folder = tmp_path / "birds"
    folder.mkdir()
    (folder / "1.jpg").write_bytes(EPS)
    found = decode_pictures([folder], 8)
    assert len(found.name) == 0
    assert found.problems[UNREADABLE].examples == ("birds/1.jpg (not a picture)",)
    with pytest.raises(SourceError, match=r"1\.jpg is not a readable picture: not a picture"):
        read_grey_folder(folder)


def encoded(size: tuple[int, int], kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, "red").save(buffer, kind)
    return buffer.getvalue()


def huge_png() -> bytes:
    """A PNG of a few bytes that states 50,000 x 50,000 pixels."""
    content = bytearray(encoded((1, 1), "PNG"))
    content[16:24] = struct.pack(">II", 50_000, 50_000)
    content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
    return bytes(content)


def huge_webp() -> bytes:
    chunk = b"VP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + (16_382).to_bytes(3, "little") * 2
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


@pytest.mark.parametrize("content", [huge_png(), huge_webp()], ids=["png", "webp"])
def test_pixels_are_bounded_before_they_are_decoded(content):
    with pytest.raises(SourceError, match="pixels"), open_picture(content):
        pass


def test_every_format_that_is_needed_opens():
    for kind in ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM"):
        with open_picture(encoded((5, 4), kind)) as picture:
            assert picture.size == (5, 4)
    assert MAX_PIXELS < 2**31


def test_a_picture_cut_short_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "cut.jpg").write_bytes(encoded((64, 64), "JPEG")[:400])
    with pytest.raises(SourceError, match=r"cut\.jpg is not a readable picture.*Replace or remove it"):
        read_grey_folder(tmp_path)


def test_a_pipe_or_a_device_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    with pytest.raises(SourceError, match=r"pipe\.png is a named pipe; expected a regular file"):
        open_file(tmp_path / "pipe.png")
    with pytest.raises(SourceError, match=r"zero\.csv is a device"):
        read_file(tmp_path / "zero.csv")


def test_pipes_among_pictures_and_stations_never_keep_anybody_waiting(tmp_path):
    birds = tmp_path / "birds"
    birds.mkdir()
    os.mkfifo(birds / "pipe.png")
    assert decode_pictures([birds], 8).problems[UNREADABLE].count == 1
    year = tmp_path / "2019"
    year.mkdir()
    os.mkfifo(year / "01001099999.csv")
    with pytest.raises(SourceError, match="is a named pipe"):
        read_stations(year)


def test_a_file_above_its_bound_is_not_read(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room
    with pytest.raises(SourceError, match="expected at most"):
        read_file(path)


def test_a_gzip_bomb_is_stopped_on_its_way(tmp_path):
    bomb = gzip.compress(bytes(SMALL_BYTES + 1), 1)
    with pytest.raises(SourceError, match="unpacks to more than"):
        gunzip(bomb, "bomb.gz")
    assert gunzip(gzip.compress(b"plain"), "plain.gz") == b"plain"
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(bomb)
    with pytest.raises(SourceError, match="unpacks to more than"):
        read_split(tmp_path, "train")


def test_a_sparse_file_in_a_tar_is_refused(tmp_path):
    sparse = info("1.csv", 0, tarfile.GNUTYPE_SPARSE)
    header = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"%011o\0" % (200 << 30)  # the size it states, in the old GNU form
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:512]) + 8 * 32)
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(bytes(header) + bytes(1024)))
    with pytest.raises(SourceError, match=r"a\.tar\.gz is not read beyond its beginning: it holds the sparse file"):
        read_all(path)


def test_links_pipes_and_devices_of_an_archive_are_passed_over(tmp_path):
    link = info("link.csv", kind=tarfile.SYMTYPE)
    link.linkname = "/etc/passwd"
    odd = [(link, b""), (info("pipe.csv", kind=tarfile.FIFOTYPE), b""), (info("disk.csv", kind=tarfile.BLKTYPE), b"")]
    assert read_all(tar_of(tmp_path / "a.tar", *odd, (info("plain.csv", 2), b"ok"))) == {"plain.csv": b"ok"}
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        linked = zipfile.ZipInfo("link.csv")
        linked.external_attr = 0o120777 << 16
        packed.writestr(linked, "/etc/passwd")
        packed.writestr("plain.csv", "ok")
    assert read_all(tmp_path / "a.zip") == {"plain.csv": b"ok"}


@pytest.mark.parametrize("name", ["../out.csv", "/etc/out.csv", "a/../../out.csv", "..\\out.csv"])
def test_names_that_lead_out_of_an_archive_are_refused(name, tmp_path):
    with pytest.raises(SourceError, match="leads out of it"):
        read_all(tar_of(tmp_path / "a.tar", (info(name, 2), b"no")))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr(name, "no")
    with pytest.raises(SourceError, match="leads out of it"):
        read_all(tmp_path / "a.zip")


def test_members_are_bounded_in_number_and_size(tmp_path):
    tar = tar_of(tmp_path / "a.tar", *((info(f"{i}.csv", 10), bytes(10)) for i in range(3)))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for i in range(3):
            packed.writestr(f"{i}.csv", bytes(10))
    for archive in (tar, tmp_path / "a.zip"):
        assert len(read_all(archive)) == 3
        with pytest.raises(SourceError, match="more than 2 files"):
            read_all(archive, Bounds(members=2))
        with pytest.raises(SourceError, match="of 10 bytes; at most 9 are read"):
            read_all(archive, Bounds(member_bytes=9))
    with pytest.raises(SourceError, match="30 bytes together; at most 29"):
        read_all(tmp_path / "a.zip", Bounds(total_bytes=29))
    with pytest.raises(SourceError, match=r"more than 1,000 bytes"):
        read_all(tar, Bounds(total_bytes=1000))


def test_a_tar_that_unpacks_to_far_more_than_it_is_ends_early(tmp_path):
    size = SMALL_BYTES + 1
    tar = tar_of(tmp_path / "a.tar.gz", (info("0.csv", size), bytes(size)), packed=True)
    with pytest.raises(SourceError, match="more than archives of its size do"):
        read_all(tar)


def test_a_zip_file_that_states_less_than_it_unpacks_to_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("0.csv", bytes(100_000))
    content = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(content.replace(struct.pack("<I", 100_000), struct.pack("<I", 1)))
    with pytest.raises(SourceError, match="damaged or cut short"):
        read_all(tmp_path / "a.zip")


def test_an_xz_that_asks_for_much_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LZMA_BYTES", 1 << 20)  # packing for gigabytes would take the test as long
    path = tmp_path / "a.tar.xz"
    path.write_bytes(lzma.compress(bytes(10240)))
    with pytest.raises(SourceError, match=r"a\.tar\.xz is damaged.*[Mm]emory"):
        read_all(path)


def test_arrays_come_back_and_are_known_by_their_digest(tmp_path):
    arrays = {"a.b": np.arange(6.0).reshape(2, 3), "c": np.asfortranarray(np.eye(3)), "n": np.array(3)}
    arrays["names"] = np.array(["é", "x"])
    path = tmp_path / "a.npz"
    path.write_bytes(pack_arrays(arrays))
    found = unpack_arrays(path)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    with np.load(path) as plain:  # the digest is no array: older versions read the file
        assert set(plain.files) == set(arrays)


def test_arrays_under_the_digest_of_others_are_refused(tmp_path):
    one, other = (pack_arrays({"a": np.full(3, value)}) for value in (1.0, 2.0))
    path = tmp_path / "a.npz"
    path.write_bytes(one[: one.index(MARK)] + other[other.index(MARK) :])
    with pytest.raises(SourceError, match="digest"):
        unpack_arrays(path)


def saved(a: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=a)
    return buffer.getvalue()


def test_nothing_is_unpickled(tmp_path):
    class Bad:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    path = tmp_path / "a.npz"
    path.write_bytes(saved(a=np.array([Bad()], dtype=object)))
    with pytest.raises(SourceError, match="type object"):
        unpack_arrays(path)
    with pytest.raises(SourceError, match="no complete file"):
        read_faces(path, 8)
    assert not (tmp_path / "made").exists()


def test_an_array_of_another_size_than_its_header_states_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(io.BytesIO(saved(a=np.zeros(3)))) as old, zipfile.ZipFile(path, "w") as new:
        new.writestr("a.npy", old.read("a.npy").replace(b"(3,), }", b"(4,), }"))
    with pytest.raises(SourceError, match="24 bytes for an array of 4 x 8"):
        unpack_arrays(path)


def test_a_table_that_begins_with_a_byte_order_mark_alone_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf\n1,2\n")
    with pytest.raises(SourceError, match=r"a\.csv has a single column ''"):
        read_table([tmp_path / "a.csv"])


def test_what_polars_panics_over_is_refused_in_a_sentence(tmp_path, monkeypatch):
    def panic(*words, **more):
        raise pl.exceptions.PanicException("assertion failed")

    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(pl, "read_parquet_schema", panic)
    with pytest.raises(SourceError, match=r"a\.parquet is not a whole Parquet file \(assertion failed\)"):
        read_table([tmp_path / "a.parquet"])
