import numpy as np

from stmaml.pool.scoring import POOL, Scored
from stmaml.reports.content import Table
from stmaml.reports.labels_cost import cost_part, cost_sentence

RESULT = {"kind": "number", "target": "sold"}


def scored(shots: int, groups: list[int], mse: list[float]) -> Scored:
    width = {"90% width": np.asarray(mse) * 2}
    return Scored(shots, np.asarray(groups), {POOL: {"mse": np.asarray(mse)}}, width)


def test_numbers_of_labelled_rows_are_compared_in_the_same_groups():
    """The easy groups have few rows: by means over all of them, five rows would seem to do harm."""
    found = [scored(0, [1, 2, 3, 4], [1.0, 1.0, 100.0, 100.0]), scored(5, [3, 4], [64.0, 64.0])]
    assert cost_sentence(RESULT, found) == "5 labelled rows take the typical error of 'sold' from 10.0 to 8.00."
    said, table = cost_part(RESULT, found, None).blocks
    assert "2 groups" in str(said)
    assert isinstance(table, Table)
    assert [row["width of the 90 % interval"].value for row in table.rows] == [200.0, 128.0]
