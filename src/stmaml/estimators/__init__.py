"""Few-shot learning in scikit-learn's manner.

`fit` with groups learns across them, and so does `meta_fit`, once for many clones; `fit` without groups then adapts to
the few labelled rows of one new group; `predict` asks about rows of it, or of any group by its name.
"""

from stmaml.estimators.classifier import FewShotClassifier
from stmaml.estimators.regressor import FewShotRegressor

__all__ = ["FewShotClassifier", "FewShotRegressor"]
