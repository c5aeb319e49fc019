"""Archives and pictures made to harm: links, devices, bombs, names that lead out, polyglots, sizes that lie.

Each attack makes a file from a random number generator, so that a number repeats it; `ATTACKS` has them all. Where a
harmless reading exists (the link is passed over, the picture left out and counted) that is as good as a refusal."""

import gzip
import io
import lzma
import os
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from PIL import Image

from stmaml.data.idx import read_split
from stmaml.data.noaa import read_stations
from stmaml.data.pictures import decode_pictures
from stmaml.tables.reading import read_table
from tests.picture_files import colours

ROWS = b"shop,x,y\n" + b"".join(b"shop %d,%d,%d\n" % (i % 5, i, 3 * i) for i in range(40))
AWAY = ["../out.csv", "/tmp/stmaml-out.csv", "a/../../out.csv", "..\\..\\out.csv", "C:\\out.csv", "//host/out.csv"]
AWAY += [
    "./../out.csv",
    "~/out.csv",
    "a\0b.csv",
    "\n.csv",
    "x" * 5000 + ".csv",
    "..",
    ".",
    "/",
    "con.csv",
    "é/../../o.csv",
]
AIMS = ["/etc/passwd", "../../../../etc/passwd", "/dev/zero", "/proc/self/mem", "a.csv", ".", "/"]
LINKS = [tarfile.SYMTYPE, tarfile.LNKTYPE]
DEVICES = [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, b"V", b"M", b"Z"]
SIZES = [(60_000, 60_000), (2**31 - 1, 1), (1, 2**31 - 1), (20_000, 20_000), (0, 0), (2**16 - 1, 2**16 - 1)]
MEBI = 1 << 20


@dataclass(frozen=True)
class Attack:
    """A way to harm, and the reader it is aimed at."""

    name: str
    make: Callable[[Path, Random], Path]
    """Writes the file into an empty folder."""
    load: Callable[[Path], object]


def _read_pictures(path: Path) -> None:
    found = decode_pictures([path if path.suffix in (".tar", ".gz", ".xz") else path.parent], 8)
    assert found.pixels.shape[1:] == (8, 8, 3)
    assert int(found.pixels.sum()) >= 0


def _read_rows(path: Path) -> None:
    assert read_table([path]).width > 0


def _read_idx(path: Path) -> None:
    assert read_split(path.parent, "train").images.ndim == 3


# Archives.


def _member(
    name: str, body: bytes = ROWS, kind: bytes = tarfile.REGTYPE, aim: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, aim, len(body) if kind == tarfile.REGTYPE else 0
    info.devmajor, info.devminor = 1, 5
    return info, body


def _tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], how: str = "w", kind: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, how, format=kind, encoding="utf-8", errors="surrogateescape") as tar:  # pyright: ignore
        for info, body in members:
            tar.addfile(info, io.BytesIO(body) if info.isreg() else None)
    return path


def _packed(rng: Random) -> tuple[str, str]:
    return rng.choice([("a.tar", "w"), ("a.tar.gz", "w:gz"), ("a.tar.xz", "w:xz")])


def _links(folder: Path, rng: Random) -> Path:
    name, how = _packed(rng)
    link = _member("a.csv", kind=rng.choice(LINKS), aim=rng.choice(AIMS))
    through = _member(rng.choice(["a.csv", "a.csv/b.csv", "b.csv"]))
    return _tar(folder / name, link, through, how=how)


def _devices(folder: Path, rng: Random) -> Path:
    name, how = _packed(rng)
    odd = _member("a.csv", kind=rng.choice(DEVICES))
    return _tar(folder / name, *([odd, _member("b.csv")] if rng.random() < 0.5 else [odd]), how=how)


def _tar_names(folder: Path, rng: Random) -> Path:
    name, how = _packed(rng)
    kind = rng.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    return _tar(folder / name, _member(rng.choice(AWAY)), _member("b.csv"), how=how, kind=kind)


def _checksum(head: bytearray) -> int:
    """Of a tar head, whose own place counts as spaces."""
    return sum(head[:148]) + 8 * ord(" ") + sum(head[156:512])


def _tar_lies(folder: Path, rng: Random) -> Path:
    """A head that states another size than what follows."""
    info, body = _member("a.csv")
    info.size = rng.choice([2**33, 2**62, len(body) - 1, len(body) + 512, 8 << 30])
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    if rng.random() < 0.3:
        head[124:136] = rng.choice([b"-0000000001\0", b"\xff" * 12, b"99999999999\0", b"\x80" + bytes(10) + b"\x01"])
        head[148:156] = b"%06o\0 " % _checksum(head)
    content = bytes(head) + body + bytes(-len(body) % 512) + bytes(rng.choice([0, 512, 1024]))
    pack = rng.choice([lambda raw: raw, lambda raw: gzip.compress(raw, 1)])
    path = folder / ("a.tar" if pack(b"x") == b"x" else "a.tar.gz")
    path.write_bytes(pack(content))
    return path


def _sparse(folder: Path, rng: Random) -> Path:
    info, _ = _member("a.csv", kind=tarfile.GNUTYPE_SPARSE)
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    head[386:398], head[398:410] = b"%011o\0" % 0, b"%011o\0" % 1
    head[483:495] = b"%011o\0" % rng.choice([2**32, 200 << 30, 2**33 - 1])
    head[148:156] = b"%06o\0 " % _checksum(head)
    (folder / "a.tar.gz").write_bytes(gzip.compress(bytes(head) + bytes(1024), 9))
    return folder / "a.tar.gz"


def _pax(folder: Path, rng: Random) -> Path:
    """Extended heads that contradict the plain one."""
    info, body = _member("a.csv")
    odd = rng.choice([{"size": "9" * 30}, {"size": "-1"}, {"path": "../../out.csv"}, {"linkpath": "/etc/passwd"}])
    odd |= rng.choice([{}, {"GNU.sparse.realsize": str(1 << 40)}, {"GNU.sparse.map": "0,1,5"}, {"mtime": "nan"}])
    info.pax_headers = odd
    return _tar(folder / "a.tar", (info, body), kind=tarfile.PAX_FORMAT)


def _bomb(folder: Path, rng: Random) -> Path:
    """Zeros or one line again and again, 200 to 600 MiB of them, in any wrapping."""
    piece, times = rng.choice([bytes(MEBI), b"1,2,3\n" * (MEBI // 6), b"," * MEBI]), rng.choice([200, 400, 600])
    how = rng.choice(["csv.gz", "tar.gz", "tar.xz", "zip", "idx.gz"])
    if how == "zip":
        with (
            zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
            new.open("a.csv", "w") as to,
        ):
            for _ in range(times):
                to.write(piece)
        return folder / "a.zip"
    name = {"idx.gz": "train-images-idx3-ubyte.gz"}.get(how, f"a.{how}")
    info, _ = _member("a.csv", b"")
    info.size = times * len(piece)
    with lzma.open(folder / name, "wb", preset=0) if how == "tar.xz" else gzip.open(folder / name, "wb", 1) as to:
        to.write(info.tobuf(tarfile.GNU_FORMAT) if how.startswith("tar") else b"")
        to.write(b"\0\0\x08\x03" + struct.pack(">3I", times, 1024, 1024) if how == "idx.gz" else b"")
        for _ in range(times):
            to.write(piece)
    return folder / name


def _read_bomb(path: Path) -> None:
    (_read_idx if "idx" in path.name else _read_rows)(path)


def _nested(folder: Path, rng: Random) -> Path:
    """An archive in an archive, many deep, under the name of a table."""
    body = ROWS
    for _ in range(rng.choice([1, 3, 20])):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
            new.writestr(rng.choice(["a.zip", "a.csv", "a.csv.gz", "a.parquet", "a.xlsx"]), body)
        body = buffer.getvalue()
    path = folder / rng.choice(["a.zip", "a.csv", "a.tar", "a.xlsx"])
    path.write_bytes(body)
    return path


def _zip_names(folder: Path, rng: Random) -> Path:
    with zipfile.ZipFile(folder / "a.zip", "w") as new, warnings.catch_warnings(action="ignore"):
        for name in (rng.choice(AWAY), "b.csv", rng.choice(["b.csv", "c.csv"])):
            info = zipfile.ZipInfo("x.csv")
            info.filename = name.replace("\0", "") or "x"
            info.external_attr = rng.choice([0, 0o120777 << 16, 0o020666 << 16, 0o010644 << 16, 0o040755 << 16])
            new.writestr(info, rng.choice([ROWS, b"/etc/passwd"]))
    return folder / "a.zip"


def _zip_lies(folder: Path, rng: Random) -> Path:
    """Sizes, places, methods or flags of the directory that contradict the file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        new.writestr("a.csv", ROWS)
        new.writestr("b.csv", ROWS)
    content = bytearray(buffer.getvalue())
    at = content.index(b"PK\1\2")
    where, odd = rng.choice([
        (8, b"\1\0"), (10, b"\x0c\0"), (10, b"\x63\0"), (10, b"\xff\xff"), (16, b"\0\0\0\0"), (20, b"\xff\xff\xff\x7f"),
        (24, b"\xff\xff\xff\x7f"), (24, b"\xff\xff\xff\xff"), (42, b"\xff\xff\xff\x7f"), (42, b"\x01\0\0\0"),
        (28, b"\xff\xff"), (30, b"\xff\xff"), (32, b"\xff\xff"),
    ])  # fmt: skip
    content[at + where : at + where + len(odd)] = odd
    if rng.random() < 0.3:
        end = content.index(b"PK\5\6")
        content[end + rng.choice([8, 10, 12, 16]) :][:2] = b"\xff\xff"
    path = folder / rng.choice(["a.zip", "a.xlsx"])
    path.write_bytes(bytes(content))
    return path


def _overlapping(folder: Path, rng: Random) -> Path:
    """Many names for one body: a zip bomb that no ratio of a single file shows."""
    buffer, body = io.BytesIO(), b"1,2,3\n" * rng.choice([200_000, 2_000_000])
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new:
        new.writestr("a.csv", body)
    content = buffer.getvalue()
    at, end = content.index(b"PK\1\2"), content.index(b"PK\5\6")
    entry, count = content[at:end], rng.choice([200, 5000])
    tail = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(entry) * count, at, 0)
    (folder / "a.zip").write_bytes(content[:at] + entry * count + tail)
    return folder / "a.zip"


def _not_an_archive(folder: Path, rng: Random) -> Path:
    body = rng.choice(
        [b"", b"\x1f\x8b", b"PK\3\4", b"PK\5\6" + bytes(18), b"\xfd7zXZ\0", ROWS, rng.randbytes(2000), b"BZh9"]
    )
    path = folder / rng.choice(
        ["a.tar", "a.tar.gz", "a.tar.xz", "a.zip", "a.csv.gz", "a.parquet", "a.xlsx", "a.feather"]
    )
    path.write_bytes(body + rng.randbytes(rng.choice([0, 7, 600])))
    return path


def _odd_file(folder: Path, rng: Random) -> Path:
    """A pipe, a link to a device or to itself, a folder, under a name of a table or a picture."""
    path = folder / "class" / rng.choice(["a.csv", "a.png", "a.tar"])
    path.parent.mkdir()
    what = rng.choice(["pipe", "zero", "loop", "folder", "nowhere"])
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to({"zero": "/dev/zero", "loop": path.name, "nowhere": "/nowhere/at/all"}[what])
    return path


def _read_odd(path: Path) -> None:
    (_read_pictures if path.suffix == ".png" else _read_rows)(path)


# Pictures.


def _plain(kind: str, size: int = 24) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(colours(1, size=size)).save(buffer, kind)
    return buffer.getvalue()


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _png(width: int, height: int, data: bytes, *more: bytes, depth: int = 8, colour: int = 2) -> bytes:
    head = struct.pack(">2I5B", width & 0xFFFFFFFF, height & 0xFFFFFFFF, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + b"".join(more) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _put(folder: Path, name: str, content: bytes, rng: Random) -> Path:
    """As a file in a folder of pictures beside a sound one, or as a member of an archive."""
    if rng.random() < 0.3:
        return _tar(
            folder / "pictures.tar", _member(f"class/{name}", content), _member("class/sound.png", _plain("PNG"))
        )
    path = folder / "class" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    if rng.random() < 0.5:
        (path.parent / "sound.png").write_bytes(_plain("PNG"))
    return path


def _pixel_bomb(folder: Path, rng: Random) -> Path:
    width, height = rng.choice(SIZES)
    short = struct.pack("<2H", width & 0xFFFF, height & 0xFFFF)
    made = {
        "png": _png(width, height, zlib.compress(bytes(rng.choice([100, 3 * MEBI])))),
        "gif": b"GIF89a" + short + b"\x80\0\0" + bytes(6) + b"," + bytes(4) + short + b"\0\2\2L\1\0;",
        "bmp": b"BM"
        + struct.pack("<IHHI", 1000, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
        + bytes(900),
        "ppm": b"P6 %d %d 255\n" % (width, height) + bytes(100),
        "webp": b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + b"\xff" * 6,
        "tif": b"II*\0\x08\0\0\0\2\0"
        + struct.pack("<HHII", 256, 4, 1, width)
        + struct.pack("<HHII", 257, 4, 1, height)
        + bytes(4),
    }
    ending = rng.choice(list(made))
    return _put(folder, f"1.{ending}", made[ending], rng)


def _text_bomb(folder: Path, rng: Random) -> Path:
    """Texts and profiles in a small picture that unpack to a hundred megabytes."""
    packed = zlib.compress(bytes(rng.choice([10, 100]) * MEBI), 9)
    chunk = rng.choice(
        [
            _chunk(b"zTXt", b"a\0\0" + packed),
            _chunk(b"iCCP", b"a\0\0" + packed),
            _chunk(b"iTXt", b"a\0\1\0\0\0" + packed),
        ]
    )
    body = zlib.compress(b"".join(b"\0" + bytes(24) for _ in range(8)))
    return _put(folder, "1.png", _png(8, 8, body, *([chunk] * rng.choice([1, 5]))), rng)


def _polyglot(folder: Path, rng: Random) -> Path:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as new:
        new.writestr("a.csv", ROWS)
    picture = _plain(rng.choice(["PNG", "JPEG", "GIF", "BMP"]))
    both = picture + packed.getvalue() if rng.random() < 0.5 else packed.getvalue() + picture
    if rng.random() < 0.5:
        return _put(folder, rng.choice(["1.png", "1.jpg", "1.gif", "1.webp"]), both, rng)
    path = folder / rng.choice(["a.zip", "a.csv", "a.xlsx", "a.tar", "a.parquet"])
    path.write_bytes(both)
    return path


def _read_polyglot(path: Path) -> None:
    (_read_pictures if path.parent.name == "class" or path.name == "pictures.tar" else _read_rows)(path)


def _other_format(folder: Path, rng: Random) -> Path:
    """Formats that start other programs or parsers, under the name of a picture."""
    texts = [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(out) (w) file\n",
        b"<svg xmlns='x'><image href='/etc/passwd'/></svg>",
    ]
    texts += [
        b"\x00\x00\x01\x00\x01\x00" + bytes(60),
        b"8BPS\0\1" + bytes(40),
        b"icns" + bytes(40),
        b"%PDF-1.7\n",
        b"\0\0\0\x0cjP  \r\n\x87\n",
    ]
    texts += [
        b"DDS " + bytes(124),
        b"SIMPLE  =                    T",
        b"\xd7\xcd\xc6\x9a" + bytes(40),
        b"\x93NUMPY\1\0",
        b"#!/bin/sh\ntouch out\n",
    ]
    return _put(folder, rng.choice(["1.png", "1.jpg", "1.gif", "1.tif"]), rng.choice(texts) + rng.randbytes(20), rng)


def _cut(folder: Path, rng: Random) -> Path:
    kind, ending = rng.choice(
        [("PNG", "png"), ("JPEG", "jpg"), ("GIF", "gif"), ("BMP", "bmp"), ("WEBP", "webp"), ("TIFF", "tif")]
    )
    whole = _plain(kind)
    return _put(folder, f"1.{rng.choice([ending, 'png', 'jpg'])}", whole[: rng.randrange(len(whole))], rng)


def _tiff_loop(folder: Path, rng: Random) -> Path:
    """Directories that point at themselves, and counts beyond the file."""
    entry = struct.pack(
        "<HHII", rng.choice([256, 273, 279, 34665, 330]), rng.choice([3, 4, 16]), rng.choice([1, 2**31 - 1]), 8
    )
    return _put(folder, "1.tif", b"II*\0\x08\0\0\0\1\0" + entry + struct.pack("<I", 8) + bytes(40), rng)


def _frames(folder: Path, rng: Random) -> Path:
    """A GIF of very many frames: only the first is wanted."""
    first = Image.new("P", (64, 64))
    buffer = io.BytesIO()
    first.save(
        buffer,
        "GIF",
        save_all=True,
        append_images=[Image.new("P", (64, 64), i % 2) for i in range(rng.choice([50, 300]))],
    )
    return _put(folder, "1.gif", buffer.getvalue(), rng)


def _idx_lies(folder: Path, rng: Random) -> Path:
    shape = rng.choice([(2**31, 28, 28), (2**32 - 1,) * 3, (0, 0, 0), (1, 2**31, 2**31), (10, 28, 28)])
    kind, rank = rng.choice([(8, 3), (8, 255), (13, 3), (0, 3), (8, 1)])
    body = bytes((0, 0, kind, rank)) + b"".join(struct.pack(">I", one) for one in shape) + rng.randbytes(500)
    packed = rng.random() < 0.5
    path = folder / f"train-images-idx3-ubyte{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(body, 1) if packed else body)
    return path


def _weather(folder: Path, rng: Random) -> Path:
    """Stations under names that lead out, as links, or far too long."""
    name, how = rng.choice([("2019.tar.gz", "w:gz"), ("2019.tar.xz", "w:xz")])
    odd = rng.choice([
        _member("../01001099999.csv"), _member("01001099999.csv", kind=tarfile.SYMTYPE, aim="/etc/passwd"),
        _member("01001099999.csv", kind=tarfile.FIFOTYPE), _member("01001099999.csv", b"\0" * MEBI),
        _member("01001099999.csv"),
    ])  # fmt: skip
    return _tar(folder / name, odd, how=how)


ATTACKS: tuple[Attack, ...] = (
    Attack("links in a tar", _links, _read_rows),
    Attack("devices and pipes in a tar", _devices, _read_rows),
    Attack("names that lead out of a tar", _tar_names, _read_rows),
    Attack("sizes that lie in a tar", _tar_lies, _read_rows),
    Attack("sparse files of up to 200 GB", _sparse, _read_rows),
    Attack("extended heads that contradict", _pax, _read_rows),
    Attack("ratio bombs of 200 to 600 MiB", _bomb, _read_bomb),
    Attack("archives in archives", _nested, _read_rows),
    Attack("names and links in a zip", _zip_names, _read_rows),
    Attack("directories of a zip that lie", _zip_lies, _read_rows),
    Attack("overlapping files in a zip", _overlapping, _read_rows),
    Attack("no archives", _not_an_archive, _read_rows),
    Attack("pipes, devices and loops on disk", _odd_file, _read_odd),
    Attack("pixel bombs", _pixel_bomb, _read_pictures),
    Attack("text bombs in a PNG", _text_bomb, _read_pictures),
    Attack("polyglots", _polyglot, _read_polyglot),
    Attack("other formats as pictures", _other_format, _read_pictures),
    Attack("pictures cut short", _cut, _read_pictures),
    Attack("loops in a TIFF", _tiff_loop, _read_pictures),
    Attack("pictures of many frames", _frames, _read_pictures),
    Attack("IDX heads that lie", _idx_lies, _read_idx),
    Attack("hostile archives of stations", _weather, read_stations),
)
"""Every attack."""
