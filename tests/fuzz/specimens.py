"""A whole file of every kind that is read, and what reads and uses it.

`load` raises AssertionError where a spoilt file was taken for whole and what came of it is no use."""

import gzip
import io
import json
import math
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from stmaml.benchmarks import regression2d
from stmaml.benchmarks.floors import find_floor, remember_floor
from stmaml.conditions import Conditions
from stmaml.data.faces import read_faces
from stmaml.data.idx import read_grey_folder, read_split
from stmaml.data.noaa import read_stations
from stmaml.data.pictures import decode_pictures, load_pictures
from stmaml.experiments import create_runs, experiment_of, fresh, load_experiment, load_run, scaling_for
from stmaml.inner import InnerLoop
from stmaml.locks import NAME, locked, me
from stmaml.methods import maml
from stmaml.recipes import Experiment, Modelling
from stmaml.reports.made import runs_part
from stmaml.reports.markdown import part_markdown
from stmaml.reports.sections import collect_sections
from stmaml.reports.tables import section_part
from stmaml.reports.variants import collect_variants
from stmaml.runs import Run, json_bytes, newest_common_checkpoint, read_npz
from stmaml.tables.adapted import AdaptedModel, _blank_predictors, load_adapted
from stmaml.tables.aftercare import load_calibration, load_reference, save_care
from stmaml.tables.calibration import LEVELS, Calibration, normal_score
from stmaml.tables.model import load_model
from stmaml.tables.novelty import Reference
from stmaml.tables.reading import read_table
from stmaml.tables.schema import infer_schema
from stmaml.training import TrainConfig, initial_state
from tests.face_files import faces
from tests.fuzz import kept_specimens, pool_specimens
from tests.fuzz.kinds import CELLS, JSON, NPZ, NPZ_ABOUT, Kind
from tests.fuzz.mutations import (
    spoil_about,
    spoil_arrays,
    spoil_bytes,
    spoil_cells,
    spoil_lines,
    spoil_packed,
    spoil_sheet,
    spoil_tar,
    spoil_zip,
)
from tests.idx_files import grey, idx_bytes
from tests.noaa_files import pack, write_year
from tests.picture_files import colours
from tests.table_data import lines, opened, quick, schema_in

SCORES = tuple(normal_score(np.array(LEVELS)).tolist())
CALIBRATION = Calibration((0, 5), (1.0, 2.0), (SCORES, SCORES), 20)
REFERENCE = Reference(
    np.array([1, 5]), np.zeros((2, 3)), np.stack([np.eye(3)] * 2), np.array([[0.5, 1.0]] * 2), np.full(2, np.nan)
)
CONDITIONS = Conditions("regression2d", {"shots": 10, "noise": 0.3}, 20)
METRICS = {"mse": {"mean": 1.5, "ci95": 0.2}, "nll": {"mean": 0.5, "ci95": 0.1}}


# Files of a run.


@cache
def _experiment() -> Experiment:
    settings, method = regression2d.Config(), maml.Config(hidden=(4,), inner=InnerLoop(inner_steps=1))
    training = TrainConfig(steps=10)
    return Experiment("regression2d", "maml", "paper", settings, method, Modelling(standardise=True), training)


@cache
def _benchmark() -> Any:
    return regression2d.Config().open()


@cache
def _learner() -> Any:
    return fresh(_experiment(), _benchmark().train.spec, scaling_for(_experiment(), _benchmark()))


@cache
def _state() -> Any:
    return initial_state(_learner(), _experiment().training)


def _run(folder: Path) -> Run:
    (run,) = create_runs(_experiment(), _benchmark(), folder / "run", [0])
    run.save_learner(_learner())
    run.append_log({"step": 5, "seconds": 1.5, "loss": 0.5})
    run.append_log({"step": 10, "validation": {"mse": 1.0}})
    run.save_checkpoint(10, _state())
    about = {"benchmark": "regression2d", "method": "maml", "preset": "paper", "seed": 0, "tasks": 3, "samples": 20}
    summary = {**about, "task_set": CONDITIONS.path(), "conditions": CONDITIONS.to_json(), "digest": "0" * 16}
    summary |= {"metrics": METRICS, "families": {"line": METRICS, "cubic": METRICS}, "inner_steps": None}
    summary |= {"sweep": {"figure": "shots", "label": "examples"}, "floor": {"name": "limit", "metrics": METRICS}}
    run.save_scores("test", summary, {"mse": np.ones(3), "nll": np.zeros(3)})
    trace = {"about": json_bytes({"figure": "years", "station": "X", "shots": 10}), "truth": np.zeros(9)}
    run.save_arrays(Path("curves") / "one.npz", trace)
    return run


def _same_weights(run: Run) -> None:
    found = load_run(run.folder)[1]
    alike = jax.tree.map(
        lambda a, b: bool(np.array_equal(a, b)), *(eqx.filter(t, eqx.is_array) for t in (found, _learner()))
    )
    assert all(jax.tree.leaves(alike)), "other weights than were saved"


def _load_config(path: Path) -> None:
    run = Run(path.parent)
    experiment = load_experiment(run)
    assert type(experiment.training.steps) is int
    load_run(run.folder)
    part_markdown(runs_part(collect_variants([run.folder])))


def _finite_weights(path: Path) -> None:
    learner = load_run(path.parent)[1]
    leaves = jax.tree.leaves(eqx.filter(learner, eqx.is_inexact_array))
    assert all(np.isfinite(leaf).all() for leaf in leaves), "weights that are no numbers"


def _load_checkpoint(path: Path) -> None:
    found = newest_common_checkpoint([Run(path.parents[1])], [_state()])
    leaves = [] if found is None else jax.tree.leaves(eqx.filter(found[1][0], eqx.is_inexact_array))
    assert not any(np.isnan(leaf).any() for leaf in leaves), "a state that is no number"


def _load_log(path: Path) -> None:
    run = Run(path.parent)
    for entry in run.log():
        assert type(entry.get("step", 0)) is int
        assert all(type(score) in (int, float) for score in entry.get("validation", {}).values())
    part_markdown(runs_part(collect_variants([run.folder])))


def _load_scores(path: Path) -> None:
    variants = collect_variants([path.parents[1]])
    for section in collect_sections(variants):
        part_markdown(section_part(section))


def _load_curves(path: Path) -> None:
    for trace in Run(path.parents[1]).curves().values():
        assert type(trace.about["figure"]) is str


def _load_lock(path: Path) -> None:
    kept = path.read_bytes()
    with locked([path.parent]):
        pass
    path.write_bytes(kept)


def _write_lock(folder: Path) -> Path:
    path = folder / NAME
    path.write_text(json.dumps({**asdict(me()), "pid": 2**22 + 1, "started": "1"}))
    return path


def _old(run: str, file: str) -> Callable[[Path], Path]:
    """A file of a run that 0.1.0 wrote."""

    def make(folder: Path) -> Path:
        with tarfile.open(Path(__file__).parents[1] / "runs_0_1_0.tar.xz") as tar:
            tar.extractall(folder, [m for m in tar if f"/{run}/" in m.name], filter="data")
        (found,) = folder.glob(f"*/{run}/{file}")
        return found

    return make


def _load_old_config(path: Path) -> None:
    load_experiment(Run(path.parent))
    part_markdown(runs_part(collect_variants([path.parent])))


# Files of a table's run.


@cache
def _frame() -> Any:
    return lines(12, 20)


@cache
def _table() -> Any:
    return opened(_frame())


def _table_run(folder: Path) -> Run:
    (run,) = create_runs(quick(), _table(), folder / "run", [0])
    run.save_learner(fresh(quick(), _table().train.spec, _table().own_scaling))
    save_care(run.folder, CALIBRATION, REFERENCE)
    return run


def _load_table(path: Path) -> None:
    model = load_model(path.parent)
    assert np.isfinite(model.schema.encode(_frame())).all(), "inputs that are no numbers"


def _load_calibration(path: Path) -> None:
    calibration = load_calibration(path.parent)
    at = calibration.at(np.array([0, 3, 50]))
    assert (np.asarray(at.temperature) > 0).all(), "a temperature of 0 or less"
    assert (np.diff(np.asarray(at.scores)) >= -1e-5).all(), "quantiles in the wrong order"


def _load_reference(path: Path) -> None:
    reference = load_reference(path.parent)
    novelty = reference.novelty(np.zeros((2, reference.mean.shape[1])), np.array([1, 4]))
    assert ((novelty >= 0) & (novelty <= 1)).all(), "a share outside 0 to 1"


def _adapted(folder: Path) -> Path:
    about = json.loads((_table_run(folder).config_path).read_text())
    schema, experiment = schema_in(_table()), experiment_of(about)
    shapes = _blank_predictors(schema, experiment, 2)
    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf, shapes
    )
    AdaptedModel(schema, experiment, CALIBRATION, "shop 1", 3, 2, 0.5, zeros).save(folder / "shop.npz")
    return folder / "shop.npz"


def _load_adapted(path: Path) -> None:
    model = load_adapted(path)
    assert type(model.group) is str
    leaves = jax.tree.leaves(eqx.filter(model.predictors, eqx.is_inexact_array))
    assert all(np.isfinite(leaf).all() for leaf in leaves), "predictors that are no numbers"


# Tables.


def _csv() -> bytes:
    return _frame().head(40).write_csv().encode()


def _write(name: str, content: Callable[[], bytes]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content())
        return folder / name

    return make


def _written(how: str) -> Callable[[], bytes]:
    """Rows as the method of that name of a frame writes them."""

    def content() -> bytes:
        buffer = io.BytesIO()
        getattr(_frame().head(40), how)(buffer)
        return buffer.getvalue()

    return content


def _tar(mode: Any) -> Callable[[], bytes]:
    def content() -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=mode) as tar:
            for name in ("a.csv", "b.csv"):
                member = tarfile.TarInfo(name)
                member.size = len(_csv())
                tar.addfile(member, io.BytesIO(_csv()))
        return buffer.getvalue()

    return content


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in ("a.csv", "b.csv"):
            packed.writestr(name, _csv())
    return buffer.getvalue()


def _load_rows(path: Path) -> None:
    frame = read_table([path])
    assert frame.width > 0
    if {"shop", "x", "y"} <= set(frame.columns):
        notes: list[str] = []
        schema = infer_schema(frame, "shop", "y", train=np.ones(frame.height, bool), notes=notes)
        inputs = schema.encode(frame, notes=notes) if schema.used else np.zeros(1)
        assert np.isfinite(inputs).all(), "inputs that are no numbers"


# Weather.


def _year(folder: Path) -> Path:
    return write_year(folder, 2, num_days=12)[0]


def _year_archive(ending: str) -> Callable[[Path], Path]:
    return lambda folder: pack(folder / f"2019.{ending}", write_year(folder / "files", 2, num_days=12))


def _load_stations(path: Path) -> None:
    stations = read_stations(path.parent if path.suffix == ".csv" else path)
    last = stations.offset + stations.count
    assert (last <= len(stations.day)).all()
    assert stations.readings.shape == (len(stations.day), 9)
    for name in ("TEMP", "PRCP"):
        assert np.isfinite(stations.column(name)[0]).all()


def _saved_stations(folder: Path) -> Path:
    read_stations(_year(folder).parent).save(folder / "saved.npz")
    return folder / "saved.npz"


# Pictures.


def _picture(kind: str, ending: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "train" / f"1.{ending}"
        path.parent.mkdir()
        Image.fromarray(colours(1, size=24)).save(path, kind)
        return path

    return make


def _load_picture(path: Path) -> None:
    found = decode_pictures([path.parent], 8)
    assert found.pixels.shape[1:] == (8, 8, 3)
    if path.suffix in (".png", ".jpg"):
        assert read_grey_folder(path.parent).ndim == 3


def _idx(packed: bool) -> Callable[[Path], Path]:
    content = idx_bytes(grey(6))
    name = "train-images-idx3-ubyte"
    return _write(f"{name}.gz", lambda: gzip.compress(content, 1)) if packed else _write(name, lambda: content)


def _load_idx(path: Path) -> None:
    assert read_split(path.parent, "train").images.ndim == 3


def _faces(name: str) -> Callable[[Path], Path]:
    return lambda folder: faces((4, 4, 4)).write(folder / "faces") / name


def _load_faces(path: Path) -> None:
    found = read_faces(path.parent, 8)
    assert len(found.pictures) == len(found.attributes) == len(found.partition)


def _saved_faces(folder: Path) -> Path:
    read_faces(faces((4, 4, 4)).write(folder / "faces"), 8).save(folder / "saved.npz")
    return folder / "saved.npz"


def _load_saved_faces(path: Path) -> None:
    found = read_faces(path, 8)
    assert found.pictures.shape == (len(found.partition), 8, 8, 3)
    assert found.attributes.shape == (len(found.partition), len(found.names))


def _saved_pictures(folder: Path) -> Path:
    found = decode_pictures([_picture("PNG", "png")(folder).parent], 8)
    assert found.path is not None
    (folder / "saved.npz").write_bytes(found.path.read_bytes())
    return folder / "saved.npz"


def _load_saved_pictures(path: Path) -> None:
    found = load_pictures(path)
    assert len(found.pixels) == len(found.name) == len(found.source) == len(found.digest)
    assert found.pixels.sum() >= 0


def _floors(folder: Path) -> Path:
    del folder
    limit = {"tasks": 10, "draws": 10, "metrics": METRICS, "families": {}}
    return remember_floor(Conditions("regression2d", {"shots": 3}), limit)


def _load_floor(path: Path) -> None:
    del path
    found = find_floor(Conditions("regression2d", {"shots": 3}))
    assert found is None or all(math.isfinite(one["mean"]) for one in found["metrics"].values())


PICTURES = {"PNG": "png", "JPEG": "jpg", "GIF": "gif", "BMP": "bmp", "WEBP": "webp", "TIFF": "tif", "PPM": "ppm"}
KINDS: tuple[Kind, ...] = (
    Kind("config.json", lambda f: _run(f).config_path, _load_config, JSON, dear=True),
    Kind("log.jsonl", lambda f: _run(f).log_path, _load_log, (spoil_bytes, spoil_lines)),
    Kind("learner.npz", lambda f: _run(f).learner_path, lambda p: _same_weights(Run(p.parent)), dear=True),
    Kind("weights changed", lambda f: _run(f).learner_path, _finite_weights, (spoil_arrays,), dear=True),
    Kind("checkpoint", lambda f: _run(f)._checkpoints()[0], _load_checkpoint, NPZ),
    Kind("scores (summary)", lambda f: _run(f).scores_folder / "test.json", _load_scores, JSON),
    Kind("scores (tasks)", lambda f: _run(f).scores_folder / "test.npz", lambda p: read_npz(p), NPZ),
    Kind("traces", lambda f: _run(f).folder / "curves" / "one.npz", _load_curves, (*NPZ, spoil_about)),
    Kind("lock", _write_lock, _load_lock, JSON),
    Kind("config.json (0.1.0)", _old("regression2d-maml", "config.json"), _load_old_config, JSON),
    Kind("config.json (0.1.0, ST-MAML)", _old("plain-multi-st-maml", "config.json"), _load_old_config, JSON),
    Kind("config.json (0.1.0, table)", _old("table-lines", "config.json"), _load_old_config, JSON),
    Kind("scores (0.1.0)", _old("regression2d-maml", "scores/*.json"), _load_scores, JSON),
    Kind("scores (0.1.0, table)", _old("table-lines", "scores/*.json"), _load_scores, JSON),
    Kind("config.json (table)", lambda f: _table_run(f).config_path, _load_table, JSON, dear=True),
    Kind("calibration.json", lambda f: _table_run(f).folder / "calibration.json", _load_calibration, JSON),
    Kind("reference.npz", lambda f: _table_run(f).folder / "reference.npz", _load_reference, NPZ),
    Kind("adapted group", _adapted, _load_adapted, NPZ_ABOUT, dear=True),
    Kind("limits.json", _floors, _load_floor, JSON),
    Kind("CSV", _write("a.csv", _csv), _load_rows, CELLS),
    Kind(
        "CSV, gzip",
        _write("a.csv.gz", lambda: gzip.compress(_csv(), 1)),
        _load_rows,
        (spoil_bytes, spoil_packed(spoil_cells)),
    ),
    Kind("Parquet", _write("a.parquet", _written("write_parquet")), _load_rows),
    Kind("Arrow", _write("a.arrow", _written("write_ipc")), _load_rows),
    Kind("JSON lines", _write("a.jsonl", _written("write_ndjson")), _load_rows, (spoil_bytes, spoil_lines)),
    Kind("tar", _write("a.tar", _tar("w")), _load_rows, (spoil_bytes, spoil_tar)),
    Kind(
        "tar, gzip",
        _write("a.tar.gz", _tar("w:gz")),
        _load_rows,
        (spoil_bytes, spoil_packed(spoil_bytes), spoil_packed(spoil_tar)),
    ),
    Kind("tar, xz", _write("a.tar.xz", _tar("w:xz")), _load_rows, (spoil_bytes, spoil_packed(spoil_tar))),
    Kind("zip", _write("a.zip", _zip), _load_rows, (spoil_bytes, spoil_zip)),
    Kind("GSOD station", _year, _load_stations, CELLS),
    Kind("GSOD archive", _year_archive("tar.gz"), _load_stations, (spoil_bytes, spoil_packed(spoil_bytes))),
    Kind("GSOD saved", _saved_stations, _load_stations, NPZ),
    *(Kind(f"{kind} picture", _picture(kind, ending), _load_picture) for kind, ending in PICTURES.items()),
    Kind("decoded pictures", _saved_pictures, _load_saved_pictures),
    Kind("IDX", _idx(False), _load_idx),
    Kind("IDX, gzip", _idx(True), _load_idx, (spoil_bytes, spoil_packed(spoil_bytes))),
    Kind("attributes", _faces("list_attr_celeba.txt"), _load_faces, CELLS),
    Kind("partition", _faces("list_eval_partition.txt"), _load_faces, CELLS),
    Kind("people", _faces("identity_CelebA.txt"), _load_faces, CELLS),
    Kind("saved faces", _saved_faces, _load_saved_faces, NPZ),
    Kind("Excel", _write("a.xlsx", _written("write_excel")), _load_rows, (spoil_bytes, spoil_zip, spoil_sheet)),
    *pool_specimens.KINDS,
    *kept_specimens.KINDS,
)
"""Every kind of file."""
