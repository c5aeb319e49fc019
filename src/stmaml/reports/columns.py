"""What was made of each column of a user's table."""

from stmaml.reports.content import Table, words
from stmaml.tables.schema import Schema


def columns_table(schema: Schema) -> Table:
    """A row for each column, the target last."""
    rows = [
        {
            "column": words(column.name),
            "kind": words(column.kind),
            "missing": words("some" if column.has_missing else ""),
            "holds": words(column.describe()),
        }
        for column in schema.columns
    ]
    target = schema.target
    kind = "target: class" if target.is_class else "target: number"
    last = {"column": words(target.name), "kind": words(kind), "holds": words(target.describe())}
    return Table(
        ("column", "kind", "missing", "holds"),
        (*rows, last),
        "What was made of each column",
        ("kind", "missing", "holds"),
    )
