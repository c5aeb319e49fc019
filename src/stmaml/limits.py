"""How much is held in memory at once, wherever the amount is a guess: more is faster up to a point, and then too much.

`training/memory.py` measures instead of guessing, but for `FREE_SHARE`.
"""

FREE_SHARE = 0.9  # of the memory that is free, what a training step may plan with: allocators leave gaps
AHEAD_BYTES = 2**26  # training batches drawn ahead of their steps on the device
DRAWN_BYTES = 2**29  # training batches made on the host that wait for one compiled call
EVALUATED_BYTES = {"cpu": 2**26, "other": 2**28}
"""Inputs adapted to at once, by the kind of device; networks for images need some dozen times as much themselves."""
SCALING_BYTES = 2**27  # of tasks in a short form, those whose images are measured at once
PARSED_BYTES = 8 << 20  # text parsed at once: large enough to hide the cost of a call, small enough for eight in memory
ONE_PART_IN = 4  # images stay on the device if they fill no more than one part in so many of its memory
TASKS_AT_ONCE = 50  # held-out groups of a table that are predicted at once
ROWS_AT_ONCE = 2**16  # rows of a table that are predicted at once, counted once for each sample
POOLED_ROWS = 2**18  # days of weather whose inputs are made at once
MODELS_AT_ONCE = 10
"""Models adapted side by side to pictures. Each needs memory for all of them, and only its answers are kept."""

# These two are part of the results: with other numbers, other rows are read or other draws are made.
STATISTICS_ROWS = 500_000  # days of weather that tell the spread of an input
DRAWS_AT_ONCE = 8192  # draws from a prior that are weighed at once; what is held is this times tasks times query points
