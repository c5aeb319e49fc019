"""Which small errors in the code would its own tests notice? Each mutant has one: they should all be killed.

python studies/mutants.py [--modules inner metrics] [--mutants 300] [--limit 120] [--seed 0] [--json]

A mutant flips a comparison, swaps + and - or * and /, moves a number by one, drops a `not`, swaps `and` and `or`, or
returns nothing. Only the module's own test files run, in a child that is forked from a process which has imported what
takes long, and only until the first failure. Some survivors are no errors at all (`<` for `<=` where both are the same
number never): read the list."""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from shares import Share, add_flags, share_of

HOME = Path(__file__).resolve().parents[1]
MODULES = {
    "inner": ("inner.py", ("test_inner.py",)),
    "likelihoods": ("likelihoods.py", ("test_likelihoods.py",)),
    "normal": ("outcomes/normal.py", ("test_outcomes.py",)),
    "student": ("outcomes/student.py", ("test_outcomes.py",)),
    "mixture": ("outcomes/mixture.py", ("test_outcomes.py",)),
    "discrete": ("outcomes/discrete.py", ("test_outcomes.py", "test_prediction.py")),
    "metrics": ("metrics.py", ("test_metrics.py", "tables/test_coverage.py")),
    "comparison": ("comparison.py", ("test_comparison.py",)),
    "coverage": ("tables/coverage.py", ("tables/test_coverage.py",)),
    "calibration": ("tables/calibration.py", ("tables/test_calibration.py",)),
    "st_maml": ("methods/st_maml.py", ("methods/test_st_maml.py",)),
}
"""The file of each module and the files of its tests."""
SECONDS = dict.fromkeys(MODULES, 12.0) | {"inner": 5.0, "likelihoods": 8.0, "comparison": 8.0, "st_maml": 30.0}
"""What a mutant of each takes, roughly, with a start of the process's own: processes share the work by it."""
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
ENDS = ("killed", "late", "survived")
FAILED = 1
JOINS = {ast.And: ast.Or, ast.Or: ast.And}


@dataclass(frozen=True)
class Mutant:
    """A module with one error."""

    module: str
    line: int
    before: str
    after: str
    source: str


@dataclass(frozen=True)
class Verdict:
    """What its tests made of a mutant."""

    module: str
    line: int
    before: str
    after: str
    end: str
    """killed, survived or late."""
    seconds: float


def sites(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes that compute something: annotations and what only names things are left out."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "type_params"):
                children = value if isinstance(value, list) else [value]
                waiting += [child for child in children if isinstance(child, ast.AST)]


def changes(node: ast.AST) -> Iterator[dict[str, object]]:
    """Fields of a node as they would be with an error."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield {"ops": [COMPARISONS[type(node.ops[0])](), *node.ops[1:]]}
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        yield {"op": OPERATORS[type(node.op)]()}
    elif isinstance(node, ast.BoolOp):
        yield {"op": JOINS[type(node.op)]()}
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield {"value": node.value + 1}
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield {"value": not node.value}
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield {"op": ast.UAdd() if isinstance(node.op, ast.USub) else _Twice()}
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield {"value": ast.Constant(None)}


class _Twice(ast.Not):
    """Marks a `not` that is to be dropped."""


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def mutants_of(module: str) -> list[Mutant]:
    """All that can be made of a module."""
    text = (HOME / "src" / "stmaml" / MODULES[module][0]).read_text()
    tree, found = ast.parse(text), []
    for node in list(sites(tree)):
        before = ast.unparse(node) if not isinstance(node, ast.Module) else ""
        for change in changes(node):
            kept = {name: getattr(node, name) for name in change}
            _set(node, change)
            source, after = _written(tree), _written(node)
            _set(node, kept)
            found.append(Mutant(module, getattr(node, "lineno", 0), before, after, source))
    return found


def _written(tree: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(_Drop().visit(copy.deepcopy(tree))))


class _Drop(ast.NodeTransformer):
    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return node.operand if isinstance(node.op, _Twice) else node


def _set(node: ast.AST, fields: dict[str, object]) -> None:
    for name, value in fields.items():
        setattr(node, name, value)


def import_what_takes_long() -> None:
    """Third-party packages, without starting a device: threads do not survive a fork."""
    for name in ("jax", "jax.numpy", "equinox", "optax", "numpyro", "scipy.stats", "hypothesis", "pytest", "polars"):
        __import__(name)


def tested(place: Path, module: str, source: str | None, limit: float) -> tuple[str, float]:
    """How the module's tests end with this source in its place, or with its own."""
    path = place / "stmaml" / MODULES[module][0]
    own = path.read_text()
    began = time.monotonic()
    if source is not None:
        path.write_text(source)
    try:
        child = os.fork()
        if child == 0:
            try:
                _run_tests(place, module)
            finally:
                os._exit(FAILED)  # whatever came up, the rest is the parent's
        code = _wait(child, limit)
    finally:
        path.write_text(own)
    words = {0: "survived", None: "late"}
    return words.get(code, "killed"), round(time.monotonic() - began, 1)


def _run_tests(place: Path, module: str) -> None:
    """In the child: never returns."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    os.setpgid(0, 0)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(place))
    os.chdir(HOME)
    import pytest

    files = [str(HOME / "tests" / name) for name in MODULES[module][1]]
    imported = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # before pytest could look at it
    options = [*imported, "-o", "addopts=--jaxtyping-packages=stmaml,beartype.beartype -m 'not slow'"]
    os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *options, *files])))


def _wait(child: int, limit: float) -> int | None:
    """The child's exit code; none if it had to be ended."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def drawn(modules: Sequence[str], count: int, seed: int, share: Share) -> list[Mutant]:
    """This share of so many mutants of the modules, drawn at random: those of a module stay together, as far as all
    shares should take equally long."""
    pool = [mutant for module in modules for mutant in mutants_of(module)]
    chosen = random.Random(seed).sample(pool, min(count, len(pool)))
    chosen.sort(key=lambda mutant: (mutant.module, mutant.line))
    whole, before, mine = sum(SECONDS[mutant.module] for mutant in chosen), 0.0, []
    for mutant in chosen:
        if int(share.of * before / whole) == share.place:
            mine.append(mutant)
        before += SECONDS[mutant.module]
    return mine


def judged(modules: Sequence[str], count: int, limit: float, seed: int, share: Share) -> Iterator[Verdict]:
    """The verdicts on so many mutants of the modules, drawn at random."""
    place = Path(tempfile.mkdtemp(prefix="stmaml-mutants-"))
    try:
        shutil.copytree(HOME / "src" / "stmaml", place / "stmaml", ignore=shutil.ignore_patterns("__pycache__"))
        import_what_takes_long()
        lengths: dict[str, float] = {}
        for mutant in drawn(modules, count, seed, share):
            if mutant.module not in lengths:
                lengths[mutant.module] = _unharmed(place, mutant.module)
            end, seconds = tested(place, mutant.module, mutant.source, min(limit, 3 * lengths[mutant.module] + 20))
            yield Verdict(mutant.module, mutant.line, mutant.before, mutant.after, end, seconds)
            if share.over:
                break
    finally:
        shutil.rmtree(place)


def _unharmed(place: Path, module: str) -> float:
    """Seconds that the tests of a sound module take, its programs compiled; they must pass."""
    for _ in range(2):
        end, seconds = tested(place, module, None, 1200)
        if end != "survived":
            raise SystemExit(f"the tests of {module} fail without any mutant")
    return seconds


def table_of(found: Sequence[Verdict]) -> str:
    """A row a module, then the survivors."""
    rows = ["| module | mutants | killed | late | survived |", "|---|--:|--:|--:|--:|"]
    for module in dict.fromkeys(one.module for one in found):
        ends = [one.end for one in found if one.module == module]
        rows.append(f"| {module} | {len(ends)} | " + " | ".join(str(ends.count(e)) for e in ENDS) + " |")
    dead = sum(one.end != "survived" for one in found)
    rows.append(f"\n{dead} of {len(found)} noticed ({100 * dead / max(1, len(found)):.0f} %). Survivors:")
    return "\n".join([*rows, *(shown(one) for one in found if one.end == "survived")])


def shown(one: Verdict) -> str:
    """A mutant in a line."""
    before, after = (" ".join(text.split())[:70] for text in (one.before, one.after))
    return f"{MODULES[one.module][0]}:{one.line}: {before}  ->  {after}"


def main() -> None:
    """Prints a table, or all verdicts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", nargs="+", choices=list(MODULES), default=list(MODULES))
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--limit", type=float, default=120, help="most seconds for one mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="count the mutants there are, and test none")
    parser.add_argument("--json", action="store_true")
    add_flags(parser)
    flags = parser.parse_args()
    share = share_of(flags)
    if flags.list:
        print("\n".join(f"{module}: {len(mutants_of(module))}" for module in flags.modules))
        return
    found = []
    for one in judged(flags.modules, flags.mutants, flags.limit, flags.seed, share):
        found.append(one)
        share.tell(asdict(one))
        print(f"{one.end:8} {one.seconds:6.1f} s  {shown(one)}", file=sys.stderr, flush=True)
    print(json.dumps([asdict(one) for one in found], indent=1) if flags.json else table_of(found))


if __name__ == "__main__":
    main()
