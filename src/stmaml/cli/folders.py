"""Folders and files that a command is given: is there a run of `stmaml fit` in them?"""

import zipfile
from pathlib import Path

from stmaml.border.files import check_regular
from stmaml.border.writing import check_writable, writing
from stmaml.errors import RunError, SettingError


def check_folder(folder: Path) -> None:
    """Raises RunError where no run of a table can be."""
    if not folder.exists():
        raise RunError(f"there is no run folder {folder}. 'stmaml fit' makes one; check the path.")
    if not folder.is_dir():
        raise RunError(f"{folder} is a file, not the folder of a run of 'stmaml fit'. Name the folder.")
    if not (folder / "config.json").exists():
        raise RunError(f"{folder} has no config.json, so it is not the folder of a run. 'stmaml fit' makes one.")


def check_adapted(path: Path) -> None:
    """Raises RunError for a file that no adapted group is in."""
    check_regular(path)
    if not zipfile.is_zipfile(path):
        raise RunError(
            f"{path} is neither the folder of a run of 'stmaml fit' nor a whole file of an adapted group, as "
            "--save-adapted writes them (.npz). Name one of these; tables are named with --query and --support."
        )


def check_out(path: Path) -> None:
    """Raises an error where no file can be written, before anything is computed for it; no folder is made yet."""
    with writing(path):
        if path.is_dir():
            raise SettingError(f"--out {path} is a folder; expected a file. Name one in it.")
        check_writable(next(folder for folder in path.absolute().parents if folder.exists()))


def check_run_folder(folder: Path) -> None:
    """Raises RunError where no run of any kind can be."""
    if not folder.is_dir():
        what = "is a file, not the folder of a run" if folder.exists() else "does not exist"
        raise RunError(f"{folder} {what}. 'stmaml train' and 'stmaml fit' make run folders; name one.")
    if not (folder / "config.json").exists():
        raise RunError(f"{folder} has no config.json, so it is not the folder of a run. Name one that has.")
