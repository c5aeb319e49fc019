"""Settings and array names of 0.1.0, in the words of today.

There ST-MAML had flat settings, attention and lattice among them; the names of arrays were JAX's display strings.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from stmaml.errors import RunError

ENCODER = ("encoder", "attention", "num_heads", "z_hidden", "z_size", "std_form", "std_start", "reads")
CODES = ("adapted", "code_lr", "code_clamp")
LOOKUPS = ("cross_attention", "cross_waves", "lattice_channels")
TABLE = ("table", "files", "delimiter", "schema", "digest")
IMAGES = ("plain-multi", "celeba")  # benchmarks on which `h_layer` said nothing
OLD_KEYS = "0.1.0"  # marks a run whose keys are the seed's own
_BRACKETS = re.compile(r"\[(?:'(\w+)'|(\d+))\]")
_CROSS = re.compile(r"((?:\w+\.)*?)cross\.")


OLD_FORMS: Mapping[str, Any] = {"h_form": "head", "noise_rate": None, "asked_twice": True, "reading_order": "given"}
"""Settings that were not there when runs were first kept, and what was done then."""


def with_old_forms(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run; what they do not say was done as it was before it could be set."""
    names = {field.name for field in dataclasses.fields(cls)}
    return {**{name: old for name, old in OLD_FORMS.items() if name in names}, **values}


def upgrade(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a run of 0.1.0 as this version would have written it."""
    config = {**config, "format": 2, "keys": OLD_KEYS}
    if config.get("kind") == "table":
        return _upgrade_table(config)
    method = config.get("method", {})
    if method.get("name") != "st-maml" or "settings" not in method:
        return config
    settings, lookup = upgrade_st_maml(method["settings"])
    if config.get("benchmark", {}).get("name") in IMAGES:
        settings.pop("h_layer", None)
    modelling = {**config.get("modelling", {}), **lookup}
    return {**config, "method": {**method, "settings": settings}, "modelling": modelling}


def _upgrade_table(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a table's run in the layout of other runs."""
    if not {"settings", "table", "schema"} <= set(config):
        return dict(config)
    settings = {**dict.fromkeys(TABLE), "files": (), **{name: config[name] for name in TABLE if name in config}}
    rest = {name: value for name, value in config.items() if name not in ("kind", "settings", *TABLE)}
    return {**rest, **table_experiment(config["settings"], settings)}


def table_experiment(old: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """What 0.1.0 kept of a table's learner, and of its table, as the settings of an experiment."""
    method, learner, lookup = old["method"], old["learner"], {}
    if method == "st-maml":
        learner, lookup = upgrade_st_maml(learner)
    linear = old.get("linear", False)  # the first runs had none
    return {
        "seed": old["seed"],
        "benchmark": {"name": "table", "settings": dict(table)},
        "method": {"name": method, "preset": "default", "settings": learner},
        "modelling": {"standardise": True, "noise_model": old["noise_model"], "linear": linear, **lookup},
        "training": old["training"],
    }


def upgrade_st_maml(flat: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """ST-MAML's settings in their groups, and the look-up they held, if any, as a setting of its own."""
    if flat.get("gate") == "mlp":
        raise RunError("ST-MAML with gate 'mlp' is of stmaml 0.1.0 alone. Use that version, or train again.")
    gone = (*ENCODER, *CODES, *LOOKUPS, "gate", "gate_hidden", "redraw")
    settings = {name: value for name, value in flat.items() if name not in gone}
    settings["encoder"] = {name: flat[name] for name in ENCODER if name in flat}
    settings["codes"] = {name: flat[name] for name in CODES if name in flat}
    if flat.get("redraw") and flat.get("adapted") == "mean":
        settings["codes"]["adapted"] = "redrawn-mean"
    settings["gate"] = {"gate": flat.get("gate", "affine")}
    if settings["gate"]["gate"] == "set-mlp" and "gate_hidden" in flat:
        settings["gate"]["gate_hidden"] = flat["gate_hidden"]
    lookup = _lookup(flat)
    if lookup.get("lookup") == "lattice":
        settings["conv"] = {**flat.get("conv", {}), "precision": "float32"}  # it was meant for the lattice
    return settings, {"lookup": lookup} if lookup else {}


def _lookup(flat: Mapping[str, Any]) -> dict[str, Any]:
    if flat.get("cross_attention"):
        sizes = {"lookup_size": flat["encoder"][-1], "lookup_layers": flat["cross_attention"]}
        heads = {"lookup_heads": flat.get("num_heads", 8), "lookup_waves": flat.get("cross_waves", 0)}
        return {"lookup": "attention", **sizes, **heads}
    if flat.get("lattice_channels"):
        precision = flat.get("conv", {}).get("precision", "float32")
        return {"lookup": "lattice", "lookup_size": flat["lattice_channels"], "lookup_precision": precision}
    return {}


def plain_names(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by plain dotted names, whichever version named them."""
    named = {_BRACKETS.sub(r".\1\2", name).lstrip("."): array for name, array in arrays.items()}
    if not any("[" in name for name in arrays):
        return named
    holders = {match[1] for name in named if (match := _CROSS.match(name))}
    return {_beside_its_reader(name, holders): array for name, array in named.items()}


def _beside_its_reader(name: str, holders: set[str]) -> str:
    """The name of an array of an ST-MAML that held its look-up, now that this one holds ST-MAML."""
    holder = next((holder for holder in holders if name.startswith(holder)), None)
    if holder is None:
        return name
    inside = name.removeprefix(holder)
    return holder + (inside.replace("cross.", "reader.", 1) if inside.startswith("cross.") else f"learner.{inside}")
