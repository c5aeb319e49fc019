"""Whether one does better than all others on the same tasks or groups, whichever of the others is the best.

The best of several is chosen by the data that then judge it, so a test against it alone finds differences where there
are none. Better is what beats each of the others, which needs no correction (an intersection-union test: Berger,
"Multiparameter hypothesis testing and acceptance sampling", 1982). Worse is what any of them beats, for which the
level is shared among them (Bonferroni). Either is wrongly said in at most half of `level`.
"""

from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

Difference = Literal["better", "worse", "unclear"]


def compare(own: Float[np.ndarray, " m"], others: Float[np.ndarray, "k m"], level: float = 0.05) -> Difference:
    """What the scores of the same tasks say, by paired differences; lower is better."""
    count = len(own)
    if count < 2:
        return "unclear"
    statistics = paired_statistics(own[None] - others)
    if (statistics < stdtrit(count - 1, level / 2)).all():
        return "better"
    return "worse" if (statistics > -stdtrit(count - 1, level / 2 / len(others))).any() else "unclear"


def paired_statistics(differences: Float[np.ndarray, "k m"]) -> Float[np.ndarray, " k"]:
    """Student's t of each row's mean; infinite where all of a row are the same but not zero."""
    mean, error = differences.mean(1), differences.std(1, ddof=1) / differences.shape[1] ** 0.5
    certain = error <= 1e-12 * np.abs(mean)  # the differences of equal shifts differ by their rounding
    return np.where(certain, np.where(mean == 0, 0.0, np.copysign(np.inf, mean)), mean / np.where(certain, 1.0, error))
