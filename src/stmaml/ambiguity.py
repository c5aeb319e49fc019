"""Tasks whose support leaves several rules open: which of them do sampled models follow?

The query of such a task holds one set of examples for each rule. Each sampled model is assigned to the rule it serves
best; how many rules get a model is the coverage (Finn, Xu, Levine, "Probabilistic Model-Agnostic Meta-Learning", 2018).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from stmaml.limits import MODELS_AT_ONCE
from stmaml.methods.base import AbstractMetaLearner, predict_with
from stmaml.outcomes import AbstractOutcome
from stmaml.tasks import Examples, Scalar, Task

NUM_ASSIGNED = 40
"""Models that are assigned to rules, of those sampled. More would cover more rules, so their number is part of the
score; the averaged probabilities take all models there are."""


def score_open(
    learner: AbstractMetaLearner, task: Task, num_rules: int, *, num_samples: int, key: PRNGKeyArray
) -> dict[str, Scalar]:
    """The scores of one task: see `score_rules`."""
    y = task.query.y.reshape(num_rules, -1)
    sets = task.query.x.reshape(num_rules, -1, *task.query.x.shape[1:])
    answers = sample_answers(learner, task.support, sets, num_samples=num_samples, key=key)
    probabilities = answers.mean()
    true = jnp.broadcast_to(y, probabilities.shape[:-1])
    return score_rules(answers.log_prob(true), probabilities.argmax(-1) == true, probabilities.mean(0).argmax(-1) == y)


def sample_answers(
    learner: AbstractMetaLearner,
    support: Examples,
    sets: Float[Array, "r q *dx"],
    *,
    num_samples: int,
    key: PRNGKeyArray,
) -> AbstractOutcome:
    """The classes of each example [s, r, q], as each sampled model sees them on each set. A model reads each set by
    itself: were they read as one, networks that normalise by what they are asked would mix the rules. Methods that do
    not sample give as many models as they have."""

    def answers(count: int, key: PRNGKeyArray) -> AbstractOutcome:
        predictors = learner.adapt(support, num_samples=count, key=key)
        outcomes = [predict_with(predictors, x).components for x in sets]
        return jax.tree.map(lambda *each: jnp.stack(each, axis=1), *outcomes)

    if not samples_models(learner, support):
        return answers(1, key)
    at_once = min(MODELS_AT_ONCE, num_samples)
    keys = jax.vmap(lambda i: jr.fold_in(key, i))(jnp.arange(-(-num_samples // at_once)))
    found = jax.lax.map(lambda one: answers(at_once, one), keys)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:num_samples], found)


def samples_models(learner: AbstractMetaLearner, support: Examples) -> bool:
    """Whether a method gives as many models as it is asked for; the others give one, or their particles."""

    def count(asked: int) -> int:
        models = eqx.filter_eval_shape(lambda: learner.adapt(support, num_samples=asked, key=jr.key(0)))
        return jax.tree.leaves(models)[0].shape[0]

    return count(3) != count(2)


def assign(log_p: Float[Array, "s r q"]) -> Int[Array, " s"]:
    """The rule each model serves best: that whose set has the highest mean log-probability of the true labels."""
    return log_p.mean(-1).argmax(-1)


def score_rules(
    log_p: Float[Array, "s r q"], right: Bool[Array, "s r q"], mean_right: Bool[Array, "r q"]
) -> dict[str, Scalar]:
    """The scores of one task.

    - `accuracy`: of each model on the set of its own rule alone, mean over models. Optimistic: the best of the rules is
      chosen for it, with the labels known.
    - `coverage`: rules with at least one model; 1 for a single model.
    - `nll`: minus the mean log of the probability averaged over models, on all sets.
    - `nll_served`: minus the mean log-probability of each model on the set of its own rule alone, as optimistic as
      `accuracy`.
    - `accuracy_all`: of the averaged probabilities, on all sets.

    `log_p` are log-probabilities of the true label of each example of each rule's set under each model; `right` tells
    where a model's likeliest label is the true one, `mean_right` where that of the averaged probabilities is."""
    chosen = assign(log_p[:NUM_ASSIGNED])
    models = jnp.arange(chosen.shape[0])
    own = right[models, chosen]
    marginal = jax.nn.logsumexp(log_p, axis=0) - jnp.log(log_p.shape[0])
    has_model = (chosen[:, None] == jnp.arange(log_p.shape[1])[None]).any(0)
    return {
        "accuracy": own.astype(float).mean(),
        "coverage": has_model.astype(float).sum(),
        "nll": -marginal.mean(),
        "nll_served": -log_p[models, chosen].mean(),
        "accuracy_all": mean_right.astype(float).mean(),
    }
