"""Pictures of several data sets by split and class, each picture once: from files to the classes of a task."""

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int

from stmaml.data.picture_decoding import UNREADABLE, Channels
from stmaml.data.picture_files import ARCHIVES, source_name
from stmaml.data.pictures import Pictures, decode_pictures, load_pictures
from stmaml.data.problems import Problem, Problems
from stmaml.errors import SettingError, SourceError

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
ELSEWHERE = "picture outside train/, val/ and test/, passed over"
REPEATED = "picture that its class has already, left out"
LEAKED = "picture that validation or test has too, left out"


@dataclass(frozen=True)
class ClassAlbum:
    """The pictures of one split, by data set and class."""

    rows: Int[np.ndarray, " n"]  # where they stand among all pictures, in order of data set, class and name
    classes: tuple[tuple[str, str, int], ...]  # data set, name and number of pictures of each class, in the same order


@dataclass(frozen=True)
class ClassAlbums:
    """What was read from a folder."""

    datasets: tuple[str, ...]
    pictures: Pictures
    splits: dict[Split, ClassAlbum]
    problems: dict[str, Problem]


def read_albums(path: Path, datasets: tuple[str, ...], size: int, channels: Channels) -> ClassAlbums:
    """The classes of these data sets, all there are if none is named, with what was wrong with their files."""
    if path.is_file() and path.suffix == ".npz":
        pictures = _load(path, size, channels)
        names = _chosen(datasets, pictures.sources, path)
    else:
        found = find_datasets(path)
        names = _chosen(datasets, tuple(found), path)
        pictures = decode_pictures([found[name] for name in names], size, channels=channels)
    problems = Problems()
    splits = _split_up(pictures, names, problems)
    return ClassAlbums(names, pictures, splits, {**pictures.problems, **problems.summary()})


def _load(path: Path, size: int, channels: Channels) -> Pictures:
    pictures = load_pictures(path)
    depth = {"rgb": 3, "grey": 1}
    if pictures.pixels.shape[1:] != (size, size, depth[channels]):
        height, width, found = pictures.pixels.shape[1:]
        raise SourceError(
            f"{path} holds pictures of {height} x {width} in {found} channel{'s' * (found > 1)}; these settings need "
            f"{size} x {size} in {depth[channels]}. Use --image-size {height}{' --grey' * (found == 1)}, or the "
            "original pictures."
        )
    return pictures


def _chosen(wanted: tuple[str, ...], found: tuple[str, ...], path: Path) -> tuple[str, ...]:
    if unknown := [name for name in wanted if name not in found]:
        raise SettingError(f"{path} has no data set '{unknown[0]}'; it has: {', '.join(found)}.")
    return wanted or found


def find_datasets(path: Path) -> dict[str, Path]:
    """Folders and tar files by the names of their data sets; a set that is there as both is read from the folder."""
    if path.is_file():
        if not path.name.endswith(ARCHIVES):
            raise SourceError(
                f"{path} is neither a folder nor a tar file; expected <data set>/{{train,val,test}}/<class>/ of "
                "pictures in one of the two. Name another."
            )
        return {source_name(path): path}
    if _is_dataset(path):
        return {path.name: path}
    inside = sorted(path.iterdir())
    found = {source_name(p): p for p in inside if p.is_file() and p.name.endswith(ARCHIVES)}
    found |= {p.name: p for p in inside if p.is_dir() and _is_dataset(p)}
    if not found:
        raise SourceError(
            f"{path} holds no data set: expected <data set>/{{train,val,test}}/<class>/ of pictures, or <data set>.tar."
        )
    return {name: found[name] for name in sorted(found)}


def _is_dataset(folder: Path) -> bool:
    return any((folder / split).is_dir() for split in SPLITS)


def _split_up(pictures: Pictures, datasets: tuple[str, ...], problems: Problems) -> dict[Split, ClassAlbum]:
    """Each split's pictures in order, every one once in its class and in one split alone."""
    groups = _group(pictures, datasets, problems)
    for name in datasets:
        by_split: dict[Split, set[str]] = {split: {c for d, c in groups[split] if d == name} for split in SPLITS}
        _check_classes(name, by_split, pictures.problems.get(UNREADABLE))
    held_out: set[int] = set()
    splits: dict[Split, ClassAlbum] = {}
    for split in reversed(SPLITS):  # what testing has, validation and training have to do without
        rows: list[int] = []
        classes: list[tuple[str, str, int]] = []
        for (dataset, name), members in groups[split].items():
            kept = _distinct(members, pictures, held_out, f"{dataset}/{split}/{name}", problems)
            rows += kept
            classes.append((dataset, name, len(kept)))
        splits[split] = ClassAlbum(np.array(rows, dtype=np.int64), tuple(classes))
        held_out |= set(pictures.digest[splits[split].rows].tolist())
    return splits


def _group(
    pictures: Pictures, datasets: tuple[str, ...], problems: Problems
) -> dict[Split, dict[tuple[str, str], list[int]]]:
    """Rows of the pictures of each class of each split: data sets as given, classes and pictures by name."""
    found: dict[Split, dict[tuple[str, str], list[int]]] = {split: {} for split in SPLITS}
    known: dict[str, Split] = {split: split for split in SPLITS}
    tops: dict[str, str] = {}
    for row, (source, name) in enumerate(zip(pictures.source.tolist(), pictures.name.tolist(), strict=True)):
        dataset = pictures.sources[source]
        if dataset not in datasets:
            continue
        parts = name.removeprefix(f"{dataset}/").split("/")
        at = next((i for i, part in enumerate(parts) if part in known), len(parts))
        if len(parts) < at + 3:  # split, class and the picture itself
            problems.add(ELSEWHERE, f"{dataset}/{name}")
            continue
        top = "/".join((dataset, *parts[:at]))
        if tops.setdefault(dataset, top) != top:
            raise SourceError(
                f"{dataset} holds more than one data set: there are train/, val/ or test/ in {tops[dataset]} and in "
                f"{top}. Make each a folder or a tar file of its own."
            )
        found[known[parts[at]]].setdefault((dataset, parts[at + 1]), []).append(row)
    for split, groups in found.items():
        ordered = sorted(groups, key=lambda key: (datasets.index(key[0]), key[1]))
        found[split] = {key: sorted(groups[key], key=lambda row: str(pictures.name[row])) for key in ordered}
    return found


def _check_classes(dataset: str, classes: dict[Split, set[str]], unreadable: Problem | None) -> None:
    bad = f" (of all, {unreadable.count:,} could not be read, such as {unreadable.examples[0]})" if unreadable else ""
    for split in SPLITS:
        if not classes[split]:
            raise SourceError(
                f"{dataset}/{split} has no pictures{bad}; expected {dataset}/{split}/<class>/ with some. Add them, or "
                "leave the set out with --datasets."
            )
    for first, second in combinations(SPLITS, 2):
        if shared := sorted(classes[first] & classes[second]):
            raise SourceError(
                f"{dataset}/{first} and {dataset}/{second} share {len(shared)} of their classes, such as {shared[0]}; "
                "classes to be tested on must be new ones. Move each class to one of the two."
            )


def _distinct(members: list[int], pictures: Pictures, held_out: set[int], label: str, problems: Problems) -> list[int]:
    """The rows of a class without repeated pictures and without those that a later split holds."""
    kept: dict[int, int] = {}  # rows by their digests
    for row in members:
        digest = int(pictures.digest[row])
        if kind := REPEATED if digest in kept else LEAKED if digest in held_out else None:
            problems.add(kind, f"{label}/{str(pictures.name[row]).rpartition('/')[2]}")
        else:
            kept[digest] = row
    return list(kept.values())
