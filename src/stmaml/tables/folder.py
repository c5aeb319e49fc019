"""The run folder of a table: what `stmaml fit` writes first, and needs to go on."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stmaml.errors import RunError
from stmaml.provenance import provenance
from stmaml.runs import Run, from_dict
from stmaml.tables.fitting import Prepared, TableConfig
from stmaml.tables.model import clear_model
from stmaml.tables.reading import Reading
from stmaml.tables.schema import Schema, check_roles
from stmaml.tables.settings import Settings, load_settings

RESULT = "test-groups"


@dataclass(frozen=True)
class Files:
    """Where a table lies."""

    paths: tuple[Path, ...]
    delimiter: str | None = None

    def reading(self, table: TableConfig) -> Reading:
        """How to read it, if no column has two roles."""
        check_roles(table.task, table.target, table.features, table.drop)
        return Reading(self.delimiter, table.columns)


@dataclass(frozen=True)
class TableRun:
    """A run folder of a table and what it was made with."""

    run: Run
    files: Files
    table: TableConfig
    settings: Settings
    schema: Schema
    digest: str

    def check_same(self, prepared: Prepared) -> None:
        """Raises RunError if the table is not the one the run began with."""
        if prepared.digest != self.digest:
            raise RunError(
                f"the table at {self.files.paths[0]} has changed since {self.run.folder} was begun. Restore it, or fit "
                "anew with --force."
            )

    def result(self) -> dict[str, Any] | None:
        """The scores on test groups, if the run is finished."""
        return self.run.scores().get(RESULT)


def check_free(folder: Path) -> None:
    """Raises RunError if the folder already holds a run."""
    if Run(folder).config_path.exists():
        raise RunError(
            f"{folder} already holds a run. Go on with 'stmaml fit --resume {folder}', choose another --run, or "
            "replace it with --force."
        )


def create(
    folder: Path, files: Files, table: TableConfig, settings: Settings, prepared: Prepared, *, force: bool = False
) -> TableRun:
    """A new run folder with all that is needed to train and to go on."""
    if not force:
        check_free(folder)
    run = Run(folder)
    clear_model(run)
    sizes = {part: len(getattr(prepared.split, part)) for part in ("train", "val", "test", "skipped")}
    described = {
        "kind": "table",
        **provenance(),
        "seed": settings.seed,
        "files": [str(path.resolve()) for path in files.paths],
        "delimiter": files.delimiter,
        "table": dataclasses.asdict(table),
        "settings": settings.to_json(),
        "schema": prepared.schema.to_json(),
        "groups": sizes,
        "rows": prepared.num_rows,
        "digest": prepared.digest,
    }
    run.create(json.loads(json.dumps(described)), force=force)
    return TableRun(run, files, table, settings, prepared.schema, prepared.digest)


def reopen(folder: Path) -> TableRun:
    """A run folder that was begun earlier."""
    run = Run(folder)
    schema, settings = load_settings(run)
    config = run.config()
    try:
        files = Files(tuple(Path(path) for path in config["files"]), config["delimiter"])
        table = from_dict(TableConfig, config["table"])
        return TableRun(run, files, table, settings, schema, config["digest"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{run.config_path} lacks or misnames {error}. Restore it from a copy, or fit again.") from error
