"""Outcomes: the distribution of the target at each input, under one predictor.

Plain arrays, so that they may cross `vmap`; numpyro distributions are built from them on the outside. An outcome knows
what its target is and what can be done with it: whoever holds one asks it, and never what class it is of.

A noise model for real targets is a class in a file of its own, whose `from_raw` makes it of a network's outputs, and a
line in `likelihoods.NOISE_MODELS`."""

from stmaml.outcomes.base import MIN_STD, AbstractOutcome, AbstractRealOutcome
from stmaml.outcomes.discrete import BernoulliOutcome, CategoricalOutcome
from stmaml.outcomes.mixture import NormalMixtureOutcome
from stmaml.outcomes.normal import NormalOutcome
from stmaml.outcomes.student import StudentOutcome

__all__ = [
    "MIN_STD",
    "AbstractOutcome",
    "AbstractRealOutcome",
    "BernoulliOutcome",
    "CategoricalOutcome",
    "NormalMixtureOutcome",
    "NormalOutcome",
    "StudentOutcome",
]
