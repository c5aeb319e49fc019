"""Which small errors in the code would its own tests notice? Each mutant has one: they should all be killed.

python studies/mutants.py [--modules inner metrics] [--mutants 300] [--limit 120] [--seed 0] [--json]
python studies/mutants.py --again before.json   # those that survived then, or were not tried
python studies/mutants.py --survivors before.json   # those that survived then, alone
python studies/mutants.py --join before.json after.json   # the last word on each

A mutant flips a comparison, swaps + and - or * and /, moves a number by one, drops a `not`, swaps `and` and `or`, or
returns nothing. Modules have their share of any number of mutants, by their size. Only the module's own test files run,
in a fork of a process that has imported them, and only until the first failure: tests that touch the line come first,
the quick ones before the slow (mutant_tests.py). Some survivors are no errors at all
(`<` for `<=` where both are the same number never): read the list."""

import argparse
import ast
import copy
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mutant_tests import HOME, MODULES, Bench
from shares import Share, add_flags, share_of

COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
ENDS = ("killed", "late", "survived")
JOINS = {ast.And: ast.Or, ast.Or: ast.And}


@dataclass(frozen=True)
class Mutant:
    """A module with one error."""

    module: str
    line: int
    column: int
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
    column: int = 0


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
            found.append(Mutant(module, *place_of(node), before, after, source))
    return found


def place_of(node: ast.AST) -> tuple[int, int]:
    """Line and column."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _written(tree: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(_Drop().visit(copy.deepcopy(tree))))


class _Drop(ast.NodeTransformer):
    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return node.operand if isinstance(node.op, _Twice) else node


def _set(node: ast.AST, fields: dict[str, object]) -> None:
    for name, value in fields.items():
        setattr(node, name, value)


def drawn(modules: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """So many mutants of the modules, in an order of which every beginning is a fair sample."""
    ranked = []
    for module in modules:
        found = mutants_of(module)
        random.Random(f"{seed}-{module}").shuffle(found)
        ranked += [((i + 0.5) / len(found), mutant) for i, mutant in enumerate(found)]
    ranked.sort(key=lambda one: (one[0], one[1].module))
    return [mutant for _, mutant in ranked[:count]]


def judge(chosen: Sequence[Mutant], limit: float, share: Share, tell: Callable[[Verdict], object]) -> None:
    """Tells the verdicts on mutants that nobody else has taken; those first whose module has been surveyed, by
    whomever."""
    bench = Bench(sorted({mutant.module for mutant in chosen}), share)
    waiting = dict(enumerate(chosen))

    def work() -> None:
        while waiting and not share.over:
            ready = bench.ready()
            number = next((i for i, one in waiting.items() if one.module in ready), None)
            if number is None:
                time.sleep(0.5)
                continue
            mutant = waiting.pop(number)
            if mutant.module in bench.broken or not share.takes(f"mutant-{number}"):
                continue
            end, seconds = bench.tested(mutant.module, mutant.source, mutant.line, limit)
            if end == "late" and share.over:  # it was cut off
                break
            tell(Verdict(mutant.module, mutant.line, mutant.before, mutant.after, end, seconds, mutant.column))

    bench.run(work)
    if bench.broken:
        raise RuntimeError(f"the tests of modules fail without any mutant: {bench.broken}")


Name = tuple[str, int, int, str, str]


def name_of(one: Mutant | Verdict) -> Name:
    """What tells one mutant from another."""
    return one.module, one.line, one.column, one.before, one.after


def read(path: Path) -> list[Verdict]:
    """Verdicts that were saved: by `--json`, by `--lines`, or by a campaign."""
    text = path.read_text()
    if path.suffix == ".jsonl":
        found = [json.loads(line) for line in text.splitlines()]
    else:
        found = json.loads(text)
        found = found if isinstance(found, list) else found["records"]
    return [Verdict(**one) for one in found]


def joined(parts: Sequence[Sequence[Verdict]]) -> list[Verdict]:
    """The last word on each mutant, by module and line."""
    last = {name_of(one): one for part in parts for one in part}
    return sorted(last.values(), key=lambda one: (list(MODULES).index(one.module), one.line))


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
    return f"{MODULES[one.module][0]}:{one.line}:{one.column}: {before}  ->  {after}"


def main() -> None:
    """Prints a table, or all verdicts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", nargs="+", choices=list(MODULES), default=list(MODULES))
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--limit", type=float, default=120, help="most seconds for one mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="count the mutants there are, and test none")
    parser.add_argument("--again", type=Path, nargs="+", default=[], help="only those not killed in these results")
    parser.add_argument("--survivors", type=Path, nargs="+", default=[], help="only those that survived in these")
    parser.add_argument("--join", type=Path, nargs="+", default=[], help="results to print as one, instead")
    parser.add_argument("--json", action="store_true")
    add_flags(parser)
    flags = parser.parse_args()
    share = share_of(flags)
    if flags.list:
        print("\n".join(f"{module}: {len(mutants_of(module))}" for module in flags.modules))
        return
    if flags.join:
        print(table_of(joined([read(path) for path in flags.join])))
        return
    dead = {name_of(one) for one in joined([read(path) for path in flags.again]) if one.end == "killed"}
    found = []
    left = {name_of(one) for one in joined([read(path) for path in flags.survivors]) if one.end == "survived"}
    if flags.survivors:
        flags.modules, flags.mutants = sorted({name[0] for name in left}), sys.maxsize
    chosen = [one for one in drawn(flags.modules, flags.mutants, flags.seed) if name_of(one) not in dead]
    chosen = [one for one in chosen if not flags.survivors or name_of(one) in left]

    def tell(one: Verdict) -> None:
        found.append(one)
        share.tell(asdict(one))
        print(f"{one.end:8} {one.seconds:6.1f} s  {shown(one)}", file=sys.stderr, flush=True)

    judge(chosen, flags.limit, share, tell)
    print(json.dumps([asdict(one) for one in found], indent=1) if flags.json else table_of(found))


if __name__ == "__main__":
    main()
