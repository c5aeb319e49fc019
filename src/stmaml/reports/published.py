"""What the paper printed for the rows of a report: only where method and test conditions are its own."""

from stmaml.errors import SettingError
from stmaml.recipes import BEYOND, PUBLISHED, PUBLISHED_ABLATIONS, PUBLISHED_FAMILIES, PUBLISHED_NOTES, recipe
from stmaml.reports.sections import Row, Section
from stmaml.reports.variants import changes, flatten
from stmaml.runs import as_json

Printed = dict[str, tuple[float, float | None]]
"""A mean and the half-width of its interval, if it has one, by metric or family."""


def published(row: Row) -> Printed:
    """The paper's figures for a row, if its method, whole or with one part off, and test conditions are the paper's."""
    key = _paper_key(row)
    if key is None:
        return {}
    benchmark, method, part = key
    if part is None:
        return PUBLISHED.get((benchmark, method), {})
    return PUBLISHED_ABLATIONS.get((benchmark, method, part), {})


def published_families(row: Row) -> Printed:
    """The same for each family."""
    key = _paper_key(row)
    return {} if key is None else PUBLISHED_FAMILIES.get(key, {})


def paper_note(section: Section) -> str:
    """A warning beside figures of the paper that do not quite compare with ours; empty where there is none."""
    note = PUBLISHED_NOTES.get(section.conditions.benchmark)
    if note is None or not any(published(row) for row in section.rows):
        return ""
    fair = bool(note.unless) and note.unless.items() <= section.conditions.tasks.items()
    return "" if fair else f" {note.words}"


def other_families_note(section: Section) -> str | None:
    """Says which families of the paper are not here, and that those here in their place are no substitute."""
    benchmark = section.conditions.benchmark
    known = list(dict.fromkeys(f for (b, *_), each in PUBLISHED_FAMILIES.items() if b == benchmark for f in each))
    missing = [family for family in known if family not in section.families]
    others = [family for family in section.families if family not in known]
    if not missing or not others:
        return None
    return (
        f"The paper has figures for {', '.join(known)}. Not among these data sets: {', '.join(missing)}. Not in the "
        f"paper: {', '.join(others)}. Figures of the one say nothing about the other."
    )


def why_not(row: Row) -> str:
    """Why no figure of the paper stands beside a row; empty where one does."""
    key = _experiment(row)
    if isinstance(key, str):
        return key
    benchmark, method, part = key
    if published(row) or published_families(row):
        return ""
    return f"the paper has no figure for {method}{f' without {part}' if part else ''} on {benchmark}"


def unfair(section: Section) -> str:
    """Why the paper's figures are no fair comparison under these conditions; empty where they are one."""
    note = PUBLISHED_NOTES.get(section.conditions.benchmark)
    fair = note is None or (bool(note.unless) and note.unless.items() <= section.conditions.tasks.items())
    return "" if note is None or fair else note.reason


def _paper_key(row: Row) -> tuple[str, str, str | None] | None:
    """Benchmark, method and the part of it that is off, if one is; None if the row is of no experiment of the paper."""
    key = _experiment(row)
    return None if isinstance(key, str) else key


def _experiment(row: Row) -> tuple[str, str, str | None] | str:
    """The same, or in words why the row is of no experiment of the paper."""
    config, conditions = row.variant.config, row.evaluations[0].conditions
    method, benchmark = config["method"], config["benchmark"]["name"]
    if row.beside:
        return "a baseline of ours"
    try:
        usual = flatten(as_json(recipe(benchmark, method["name"]).benchmark_settings))
    except SettingError:
        return f"{method['name']} on {benchmark} is no experiment of the paper"
    tested = {**config["benchmark"]["settings"], **conditions.tasks}
    asked = ("ways", "shots", "noise", "inputs")
    other = [f"{name} {tested.get(name)}" for name in asked if name in usual and tested.get(name) != usual[name]]
    if other:
        return f"other test tasks: {', '.join(other)}"
    if method["preset"] in BEYOND:
        return f"the preset '{method['preset']}' is not the paper's"
    if conditions.inner_steps is not None:
        return f"adapted by {conditions.inner_steps} inner steps"
    own = flatten(method["settings"]) | flatten(config["modelling"].get("lookup", {}))
    changed = {name: value for name, value in changes(config).items() if name in own}
    if not changed:
        return benchmark, method["name"], None
    (part, value), *others = changed.items()
    return (
        f"other settings: {', '.join(changed)}" if others or value is not False else (benchmark, method["name"], part)
    )
