"""Ways to spoil a file: bytes anywhere, and values inside what keeps its form."""

import gzip
import io
import json
import lzma
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import numpy as np

from stmaml.border.arrays import pack_arrays
from stmaml.run_files import SEAL, sealed

Mutation = Callable[[bytes, Random], bytes]
ODD_VALUES = [None, True, -1, 0, 1, 2**62, 10**30, 1e308, -1e-320, float("nan"), float("inf"), "", "x", "\0", [], {}]
ODD_VALUES += [[None], [[1]], {"a": 1}, "9" * 5000, "é" * 100, [0] * 1000]
ODD_TEXTS = [b"9" * 5000, b"[" * 5000, b'{"a":' * 3000, b"-", b"1e99999", b"NaN", b"\xff\xfe", b'"\\ud800"', b"null"]
ODD_CELLS = [
    b"",
    b"nan",
    b"inf",
    b"-1e308",
    b"9" * 400,
    b'"',
    b'""',
    b"\0",
    b"\xff",
    b"2019-02-30",
    b",,,",
    b";",
    b"\r",
]
ODD_CELLS += [b"=1+1", b"'", b"0x10", b"1,5", b"\xef\xbb\xbf", b"TRUE", b"-", b"1" * 70_000]
MAGICS = [
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    b"\x1f\x8b",
    b"PK\3\4",
    b"\x89PNG",
    b"BZh9",
    b"\xfd7zXZ\0",
]


def spoil_bytes(content: bytes, rng: Random) -> bytes:
    """Some bytes changed, cut, doubled, moved or added."""
    for _ in range(rng.choice([1, 1, 1, 2, 5, 20])):
        content = rng.choice(BYTES)(content, rng)
    return content


def _place(content: bytes, rng: Random) -> int:
    return rng.randrange(len(content) + 1)


def _flip(content: bytes, rng: Random) -> bytes:
    at = rng.randrange(max(1, len(content)))
    return content[:at] + bytes(byte ^ (1 << rng.randrange(8)) for byte in content[at : at + 1]) + content[at + 1 :]


def _overwrite(content: bytes, rng: Random) -> bytes:
    at, odd = (
        _place(content, rng),
        rng.choice([b"\xff" * 4, b"\0" * 4, b"\xff" * 8, b"\x7f\xff\xff\xff", rng.randbytes(4)]),
    )
    return content[:at] + odd + content[at + len(odd) :]


def _cut(content: bytes, rng: Random) -> bytes:
    return content[: _place(content, rng)]


def _delete(content: bytes, rng: Random) -> bytes:
    at = _place(content, rng)
    return content[:at] + content[at + rng.choice([1, 2, 16, 512]) :]


def _double(content: bytes, rng: Random) -> bytes:
    at, size = _place(content, rng), rng.choice([1, 16, 512, 4096])
    return content[: at + size] + content[at:]


def _insert(content: bytes, rng: Random) -> bytes:
    at = _place(content, rng)
    return content[:at] + rng.choice([rng.randbytes(7), *ODD_TEXTS, *ODD_CELLS, *MAGICS]) + content[at:]


def _begin_otherwise(content: bytes, rng: Random) -> bytes:
    magic = rng.choice(MAGICS)
    return magic + content[rng.choice([0, len(magic)]) :]


BYTES: list[Mutation] = [_flip, _flip, _overwrite, _overwrite, _cut, _delete, _double, _insert, _begin_otherwise]


def spoil_json(content: bytes, rng: Random) -> bytes:
    """A value of a JSON object changed, removed or renamed; the text is still JSON, or nearly so."""
    value = json.loads(content)
    for _ in range(rng.choice([1, 1, 2, 4])):
        _spoil_value(value, rng)
    text = json.dumps(value).encode()
    return text.replace(b'"9999', rng.choice([b'"9999', b"9999"]), 1) if rng.random() < 0.2 else text


def _spoil_value(value: Any, rng: Random) -> None:
    """Changes one place in the value, found by a walk from its root."""
    while isinstance(value, dict | list) and value:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        inner = value[key]
        if not (isinstance(inner, dict | list) and inner) or rng.random() < 0.15:
            return _spoil_entry(value, key, rng)
        value = inner
    return None


def _spoil_entry(holder: Any, key: Any, rng: Random) -> None:
    what = rng.random()
    if what < 0.6:
        holder[key] = deepcopy(rng.choice(ODD_VALUES))  # the next change may be inside it
    elif what < 0.75:
        del holder[key]
    elif what < 0.85 and isinstance(holder, dict):
        holder[rng.choice(["x", "name", "kind", ""])] = holder.pop(key)
    elif isinstance(holder, list):
        holder.reverse() if what < 0.93 else holder.extend(holder[:5])
    elif type(holder[key]) in (int, float):
        holder[key] = -holder[key] * rng.choice([1, 1e6, 1e300])


def spoil_lines(content: bytes, rng: Random) -> bytes:
    """A line of JSON objects, one a line, changed."""
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    lines[at] = spoil_json(lines[at], rng) if lines[at] and rng.random() < 0.6 else rng.choice(ODD_TEXTS)
    return b"\n".join(lines)


def spoil_cells(content: bytes, rng: Random) -> bytes:
    """Cells of a table in text changed, moved or torn."""
    lines = content.split(b"\n")
    for _ in range(rng.choice([1, 2, 10])):
        at = rng.choice([0, rng.randrange(len(lines))])
        cells = lines[at].split(b",") if b"," in lines[at] else lines[at].split(b" ")
        place = rng.randrange(len(cells))
        cells[place : place + rng.choice([0, 1, 1, 1, 2])] = [rng.choice([*ODD_CELLS, *cells])]
        lines[at] = (b"," if b"," in lines[at] else b" ").join(cells)
    return b"\n".join(lines)


def spoil_arrays(content: bytes, rng: Random) -> bytes:
    """An array of an .npz file changed, renamed or removed; the file is whole, and has no digest."""
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    for _ in range(rng.choice([1, 1, 2])):
        name = rng.choice(list(arrays))
        arrays[rng.choice([name, name, name, name, "x"])] = rng.choice(ARRAYS)(arrays.pop(name), rng)
    buffer = io.BytesIO()
    rng.choice([np.savez, np.savez_compressed])(buffer, **arrays)
    return buffer.getvalue()


def _one_odd(array: np.ndarray, rng: Random) -> np.ndarray:
    """One entry is not a number, infinite, huge or negative."""
    spoilt = np.array(array)
    if spoilt.size and spoilt.dtype.kind in "fiu":
        choices = [np.nan, np.inf, -np.inf, 1e30, -1.0] if spoilt.dtype.kind == "f" else [0, 127]
        spoilt.flat[rng.randrange(spoilt.size)] = rng.choice(choices)
    return spoilt


def _cast(array: np.ndarray, kind: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return array.astype(kind) if array.dtype.kind in "fiu" else array


ARRAYS: list[Callable[[np.ndarray, Random], np.ndarray]] = [
    _one_odd,
    _one_odd,
    lambda array, rng: _cast(array, rng.choice(["f8", "f4", "i4", "u1", "?", "S3"])),
    lambda array, rng: array.reshape(-1),
    lambda array, rng: array[..., None],
    lambda array, rng: array[:0] if array.ndim else array,
    lambda array, rng: array[::-1] if array.ndim else -array if array.dtype.kind in "fi" else array,
    lambda array, rng: np.array([None, "x"], dtype=object),
    lambda array, rng: np.zeros((0, 2**40)),
    lambda array, rng: np.asfortranarray(array),
    lambda array, rng: np.frombuffer(rng.choice(ODD_TEXTS), np.uint8),
]


def spoil_about(content: bytes, rng: Random) -> bytes:
    """The JSON inside an .npz file changed, the arrays beside it left."""
    with np.load(io.BytesIO(content)) as file:
        arrays: dict[str, Any] = {name: file[name] for name in file.files}
    arrays["about"] = np.frombuffer(spoil_json(arrays["about"].tobytes(), rng), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def forge_json(content: bytes, rng: Random) -> bytes:
    """A value of a JSON object changed by somebody who knows how digests are made."""
    value = json.loads(content)
    value.pop(SEAL)
    for _ in range(rng.choice([1, 1, 2, 4])):
        _spoil_value(value, rng)
    return json.dumps(sealed(value)).encode()


def forge_arrays(content: bytes, rng: Random) -> bytes:
    """Arrays changed by somebody who knows how digests are made."""
    with np.load(io.BytesIO(spoil_arrays(content, rng)), allow_pickle=True) as file:
        return pack_arrays({name: file[name] for name in file.files if file[name].dtype.kind != "O"})


def spoil_packed(inside: Mutation) -> Mutation:
    """What is inside a packed file changed, and packed again."""

    def spoil(content: bytes, rng: Random) -> bytes:
        if content.startswith(b"\x1f\x8b"):
            return gzip.compress(inside(gzip.decompress(content), rng), 1)
        return lzma.compress(inside(lzma.decompress(content), rng), preset=0)

    return spoil


def spoil_zip(content: bytes, rng: Random) -> bytes:
    """A zip file of the same files under odd names, of odd kinds or sizes."""
    buffer = io.BytesIO()
    quiet = warnings.catch_warnings(action="ignore")  # of two files of one name, which is the point
    with quiet, zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            made = zipfile.ZipInfo(rng.choice([info.filename, *ODD_NAMES]) or "x")
            made.external_attr = rng.choice([0, 0, 0o120777 << 16, 0o010644 << 16])
            new.writestr(made, spoil_bytes(old.read(info), rng) if rng.random() < 0.5 else old.read(info))
    return buffer.getvalue()


def spoil_sheet(content: bytes, rng: Random) -> bytes:
    """A workbook of which one part has spoilt bytes inside, packed again."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        spoilt = rng.choice(old.infolist()).filename
        for info in old.infolist():
            new.writestr(info.filename, spoil_bytes(old.read(info), rng) if info.filename == spoilt else old.read(info))
    return buffer.getvalue()


ODD_NAMES = ["../out.csv", "/tmp/out.csv", "a" * 300 + ".csv", "..\\out.csv", "./a.csv", "é.csv", "c.parquet"]
KINDS = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.GNUTYPE_SPARSE]


def spoil_tar(content: bytes, rng: Random) -> bytes:
    """A tar file, not packed, of the same files under odd names, of odd kinds or sizes, by their heads alone."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(content)) as old, tarfile.open(fileobj=buffer, mode="w") as new:
        for member in old:
            file = old.extractfile(member)
            body = b"" if file is None else file.read()
            made = tarfile.TarInfo(rng.choice([member.name, *ODD_NAMES]))
            made.type, made.linkname = rng.choice([tarfile.REGTYPE, tarfile.REGTYPE, *KINDS]), "../../etc/passwd"
            made.size = rng.choice([len(body), len(body), 0, 2**33]) if made.isreg() else 0
            new.addfile(made, io.BytesIO(body + bytes(max(0, 4096 - len(body)))) if made.size < 2**20 else None)
    return buffer.getvalue()
