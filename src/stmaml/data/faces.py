"""Faces with attributes in CelebA's layout: pictures, attributes, partition and people, checked against each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int8, Int64, Shaped, UInt8

from stmaml.border.arrays import unpack_arrays
from stmaml.data.picture_files import ARCHIVES, read_member
from stmaml.data.pictures import decode_pictures
from stmaml.data.problems import BROKEN_SAVE, in_words
from stmaml.errors import SourceError

ATTRIBUTES_FILE = "list_attr_celeba.txt"
PARTITION_FILE = "list_eval_partition.txt"
PEOPLE_FILE = "identity_CelebA.txt"
PICTURES_FOLDER = "img_align_celeba"
PARTS = ("train", "validation", "test")  # what the numbers 0, 1 and 2 of the partition file stand for
MOST_DIGITS = 18  # of a person's number, so that it fits in 64 bits
TRUTH = {"1": True, "-1": False}
VERSION = 1  # of the saved form


@dataclass(frozen=True)
class Faces:
    """Pictures of faces and what is known of each."""

    pictures: UInt8[np.ndarray, "n h w 3"]
    attributes: Bool[np.ndarray, "n a"]
    names: tuple[str, ...]  # of the attributes
    partition: Int8[np.ndarray, " n"]  # 0 for training, 1 for validation, 2 for testing
    person: Int64[np.ndarray, " n"] | None  # a number for each person; None if the files do not say who is who
    notes: tuple[str, ...] = ()  # what was left out, counted and named

    def save(self, path: Path) -> None:
        """Writes one file that `read_faces` reads without the pictures."""
        arrays: dict[str, Any] = {
            "version": np.array(VERSION),
            "pictures": self.pictures,
            "attributes": self.attributes,
            "names": np.array(self.names, dtype=str),
            "partition": self.partition,
            "notes": np.array(self.notes, dtype=str),
        }
        if self.person is not None:
            arrays["person"] = self.person
        with path.open("wb") as file:
            np.savez(file, **arrays)


def read_faces(path: Path, size: int) -> Faces:
    """The faces in a folder or tar file of CelebA's layout, or in a file that `Faces.save` wrote.

    Pictures are cropped to their middle square and scaled to `size` x `size`. One that is missing or unreadable, or of
    which the lists say nothing, is left out and counted. No person and no picture is in two parts: such a person's
    pictures stay in the last of them alone, so that testing keeps its own."""
    if path.is_file() and path.suffix == ".npz":
        return _load(path, size)
    if path.is_file() and not path.name.endswith(ARCHIVES):
        raise SourceError(
            f"{path} is neither a folder nor a tar file ({', '.join(ARCHIVES)}) nor a file of saved faces (.npz). Name "
            "one of these."
        )
    attributes = _parse_attributes(_text(path, ATTRIBUTES_FILE))
    parts = _parse_numbers(_text(path, PARTITION_FILE), PARTITION_FILE)
    if odd := next((name for name, part in parts.items() if part not in (0, 1, 2)), None):
        raise SourceError(f"{PARTITION_FILE} puts {odd} into part {parts[odd]}; expected 0, 1 or 2. Correct that line.")
    people = _people(path)
    found = decode_pictures([path], size, crop=True)
    listed = _places(found.name.tolist())
    usable = [name for name in attributes.rows if name in parts and name in listed]
    if not usable:
        raise SourceError(
            f"none of the {len(attributes.rows)} pictures named in {ATTRIBUTES_FILE} is among the {len(listed)} that "
            f"{path} holds and in {PARTITION_FILE}. The files are not of one set: replace one."
        )
    notes = in_words(found.problems) + _differences(attributes.rows, parts, listed)
    rows = np.array([listed[name] for name in usable])
    partition = np.array([parts[name] for name in usable], dtype=np.int8)
    person = None if people is None else _person_of(usable, people, notes)
    if person is None:
        notes.append(f"not checked: whether anybody is in two parts, for want of {PEOPLE_FILE}")
    keep = _apart("picture", found.digest[rows], partition, usable, notes)
    if person is not None:
        keep &= _apart("picture of a person", person, partition, usable, notes)
    faces = Faces(
        pictures=_select(found.pixels, rows[keep]),
        attributes=np.stack([attributes.rows[name] for name in usable])[keep],
        names=attributes.names,
        partition=partition[keep],
        person=None if person is None else person[keep],
        notes=tuple(notes),
    )
    _check_parts(faces.partition, path)
    return faces


def _places(names: Sequence[str]) -> dict[str, int]:
    """The row of each picture by its file's name: of those in img_align_celeba/ where there are any.

    CelebA is also distributed uncropped, under the same names in another folder."""
    aligned = [row for row, name in enumerate(names) if PICTURES_FOLDER in name.split("/")[:-1]]
    return {names[row].rpartition("/")[2]: row for row in aligned or range(len(names))}


def _select(pixels: UInt8[np.ndarray, "n h w 3"], rows: np.ndarray) -> UInt8[np.ndarray, "k h w 3"]:
    """The pictures of these rows; without a copy where they are all there are, in order."""
    return pixels if np.array_equal(rows, np.arange(len(pixels))) else pixels[rows]


def _text(path: Path, name: str) -> list[str]:
    content = read_member(path, name)
    if content is None:
        raise SourceError(
            f"{path} has no {name}. Expected CelebA's layout, in a folder or a tar file: img_align_celeba/ with "
            f"pictures, {ATTRIBUTES_FILE} and {PARTITION_FILE}."
        )
    return content.decode("utf-8", errors="replace").splitlines()


@dataclass(frozen=True)
class _Attributes:
    names: tuple[str, ...]
    rows: dict[str, Bool[np.ndarray, " a"]]  # by the name of the picture


def _parse_attributes(lines: Sequence[str]) -> _Attributes:
    """A line with the number of pictures, one with the names, then a picture's name and its values a line."""
    if len(lines) < 3 or not lines[0].strip().isdecimal() or len(lines[0]) > MOST_DIGITS:
        first = lines[0][:40] if lines else ""
        raise SourceError(
            f"{ATTRIBUTES_FILE} must begin with the number of pictures and a line of attribute names; it begins with "
            f"'{first}'. Replace the file."
        )
    names = tuple(lines[1].split())
    if twice := [name for name in names if names.count(name) > 1]:
        raise SourceError(f"{ATTRIBUTES_FILE} names the attribute '{twice[0]}' twice. Correct its second line.")
    rows: dict[str, Bool[np.ndarray, " a"]] = {}
    for number, line in enumerate(lines[2:], start=3):
        if not line.strip():
            continue
        name, *values = line.split()
        if len(values) != len(names):
            raise SourceError(
                f"line {number} of {ATTRIBUTES_FILE} has {len(values)} values for {len(names)} attributes. Correct it, "
                "or replace the file."
            )
        try:
            rows[name] = np.array([TRUTH[value] for value in values])
        except KeyError as odd:
            raise SourceError(
                f"line {number} of {ATTRIBUTES_FILE} holds {str(odd)[:40]}; expected 1 (has the attribute) or -1. "
                "Correct it."
            ) from None
    if len(rows) != int(lines[0]):
        raise SourceError(
            f"{ATTRIBUTES_FILE} promises {int(lines[0])} pictures in its first line but describes {len(rows)}. It is "
            "cut short or of another set: replace it, or correct that line."
        )
    return _Attributes(names, rows)


def _parse_numbers(lines: Sequence[str], file: str) -> dict[str, int]:
    """A picture's name and a number on each line."""
    numbers: dict[str, int] = {}
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fields = line.split()
        if len(fields) != 2 or not fields[1].removeprefix("-").isdecimal() or len(fields[1]) > MOST_DIGITS:
            raise SourceError(
                f"line {place} of {file} is '{line.strip()[:40]}'; expected a picture's name and a number. Correct it."
            )
        numbers[fields[0]] = int(fields[1])
    return numbers


def _people(path: Path) -> dict[str, int] | None:
    content = read_member(path, PEOPLE_FILE)
    return None if content is None else _parse_numbers(content.decode("utf-8", "replace").splitlines(), PEOPLE_FILE)


def _person_of(names: Sequence[str], people: dict[str, int], notes: list[str]) -> Int64[np.ndarray, " n"]:
    """Who is in each picture; a picture nobody is named for gets a person of its own, and is counted in `notes`."""
    if unknown := [name for name in names if name not in people]:
        notes.append(
            f"pictures not in {PEOPLE_FILE}, each taken for another person: {len(unknown):,}, such as {unknown[0]}"
        )
    fresh = 1 + max(people.values(), default=0)
    return np.array([people.get(name, fresh + place) for place, name in enumerate(names)], dtype=np.int64)


def _differences(attributes: dict[str, np.ndarray], parts: dict[str, int], listed: dict[str, int]) -> list[str]:
    """A line for each kind of picture that is not in all three places."""
    kinds = {
        f"named in {ATTRIBUTES_FILE} but missing or unreadable": [name for name in attributes if name not in listed],
        f"not in {ATTRIBUTES_FILE}": [name for name in listed if name not in attributes],
        f"not in {PARTITION_FILE}": [name for name in attributes if name in listed and name not in parts],
    }
    return [f"pictures {kind}: {len(names):,}, such as {names[0]}" for kind, names in kinds.items() if names]


def _apart(
    what: str, group: Shaped[np.ndarray, " n"], partition: np.ndarray, names: Sequence[str], notes: list[str]
) -> Bool[np.ndarray, " n"]:
    """Which pictures stay, so that no group is in two parts: those in the last part their group is in."""
    _, member = np.unique(group, return_inverse=True)
    last = np.zeros(member.max() + 1, dtype=partition.dtype)
    np.maximum.at(last, member, partition)
    keep = partition == last[member]
    if not keep.all():
        first = names[int(np.argmin(keep))]
        notes.append(f"{what} that is in another part too: {int((~keep).sum()):,}, such as {first}")
    return keep


def _check_parts(partition: np.ndarray, path: Path) -> None:
    for number, part in enumerate(PARTS):
        if number not in partition:
            raise SourceError(
                f"{path} has no {part} picture: {PARTITION_FILE} gives part {number} to none that is usable. Expected "
                "some in each of the parts 0, 1 and 2."
            )


SAVED = {"pictures": "u1", "attributes": "b1", "names": "U", "partition": "i1", "person": "i8", "notes": "U"}
"""The types of what a file of saved faces holds, in NumPy's letters."""


def _from_arrays(arrays: dict[str, np.ndarray]) -> Faces:
    """The faces in saved arrays; ValueError or KeyError for others."""
    version = int(arrays["version"])
    if version != VERSION:
        raise ValueError(f"version {version} instead of {VERSION}")
    for name, array in arrays.items():
        if not array.dtype.str[1:].startswith(SAVED.get(name, "")):
            raise ValueError(f"{name} of type {array.dtype}")
    _check_shapes({name: array.shape for name, array in arrays.items()})
    if not np.isin(arrays["partition"], range(len(PARTS))).all():
        raise ValueError("parts other than 0, 1 and 2")
    return Faces(
        pictures=arrays["pictures"],
        attributes=arrays["attributes"],
        names=tuple(arrays["names"].tolist()),
        partition=arrays["partition"],
        person=arrays.get("person"),
        notes=tuple(arrays["notes"].tolist()),
    )


def _check_shapes(shapes: dict[str, tuple[int, ...]]) -> None:
    count, size, names = shapes["partition"], shapes["pictures"][1:2], shapes["names"]
    expected = {"pictures": (*count, *size, *size, 3), "attributes": (*count, *names), "person": count}
    for name, shape in expected.items():
        if shapes.get(name, shape) != shape or len(count) != 1:
            raise ValueError(f"{name} of shape {shapes[name]} instead of {shape}")


def _load(path: Path, size: int) -> Faces:
    try:
        faces = _from_arrays(unpack_arrays(path))
    except BROKEN_SAVE as fault:
        raise SourceError(f"{path} is no complete file of saved faces ({str(fault)[:200]}). Make it again.") from None
    height = faces.pictures.shape[1]
    if height != size:
        raise SourceError(f"{path} holds pictures of {height} x {height} pixels; use --image-size {height} with it.")
    _check_parts(faces.partition, path)
    return faces
