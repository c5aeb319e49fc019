"""Tasks whose support leaves several rules open: which of them do sampled models follow?

The query of such a task holds one set of examples for each rule. Each sampled model is assigned to the rule it serves
best; how many rules get a model is the coverage (Finn, Xu, Levine, "Probabilistic Model-Agnostic Meta-Learning", 2018).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from stmaml.methods.base import AbstractMetaLearner, predict_with
from stmaml.prediction import CategoricalOutcome
from stmaml.tasks import Examples, Task

NUM_ASSIGNED = 40
"""Models that are assigned to rules, of those sampled. More would cover more rules, so their number is part of the
score; the averaged probabilities take all models there are."""
MODELS_AT_ONCE = 10
"""Adapted side by side. Each needs memory for all its images, and only its answers are kept."""


def score_open(
    learner: AbstractMetaLearner, task: Task, num_rules: int, *, num_samples: int, key: PRNGKeyArray
) -> dict[str, Float[Array, ""]]:
    """The scores of one task: see `score_rules`."""
    y = task.query.y.reshape(num_rules, -1)
    logits = sample_answers(learner, task.support, rule_sets(task.query, num_rules), num_samples=num_samples, key=key)
    true = jnp.broadcast_to(y, logits.shape[:-1])
    return score_rules(
        CategoricalOutcome(logits).log_prob(true),
        logits.argmax(-1) == true,
        jax.nn.softmax(logits).mean(0).argmax(-1) == y,
    )


def rule_sets(query: Examples, num_rules: int) -> Float[Array, "r q *dx"]:
    """The inputs of each rule's set."""
    return query.x.reshape(num_rules, -1, *query.x.shape[1:])


def sample_answers(
    learner: AbstractMetaLearner,
    support: Examples,
    sets: Float[Array, "r q *dx"],
    *,
    num_samples: int,
    key: PRNGKeyArray,
) -> Float[Array, "s r q c"]:
    """Class logits of each sampled model on each set.

    A model reads each set by itself: were they read as one, networks that normalise by what they are asked would mix
    the rules. Methods that do not sample give as many models as they have.
    """

    def answers(count: int, key: PRNGKeyArray) -> Float[Array, "k r q c"]:
        predictors = learner.adapt(support, num_samples=count, key=key)
        outcomes = [predict_with(predictors, x).components for x in sets]
        return jnp.stack([outcome.logits for outcome in outcomes if isinstance(outcome, CategoricalOutcome)], axis=1)

    if not samples_models(learner, support):
        return answers(1, key)
    at_once = min(MODELS_AT_ONCE, num_samples)
    keys = jax.vmap(lambda i: jr.fold_in(key, i))(jnp.arange(-(-num_samples // at_once)))
    found = jax.lax.map(lambda one: answers(at_once, one), keys)
    return found.reshape(-1, *found.shape[2:])[:num_samples]


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
) -> dict[str, Float[Array, ""]]:
    """The scores of one task.

    - `accuracy`: of each model on the set of its own rule alone, mean over models. Optimistic: the best of the rules is
      chosen for it, with the labels known.
    - `coverage`: rules with at least one model; 1 for a single model.
    - `nll`: minus the mean log of the probability averaged over models, on all sets.
    - `accuracy_all`: of the averaged probabilities, on all sets.

    Args:
        log_p: log-probability of the true label of each example of each rule's set, under each model.
        right: whether the model's likeliest label is the true one.
        mean_right: the same for the label likeliest under the probabilities averaged over models.
    """
    chosen = assign(log_p[:NUM_ASSIGNED])
    own = right[jnp.arange(chosen.shape[0]), chosen]
    marginal = jax.nn.logsumexp(log_p, axis=0) - jnp.log(log_p.shape[0])
    has_model = (chosen[:, None] == jnp.arange(log_p.shape[1])[None]).any(0)
    return {
        "accuracy": own.astype(float).mean(),
        "coverage": has_model.astype(float).sum(),
        "nll": -marginal.mean(),
        "accuracy_all": mean_right.astype(float).mean(),
    }
