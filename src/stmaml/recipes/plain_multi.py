"""Settings of the methods on few-shot classification of images from several data sets."""

from dataclasses import replace

from stmaml.benchmarks import plain_multi
from stmaml.inner import InnerLoop
from stmaml.methods import arml, bmaml, hsml, maml, meta_sgd, mmaml, neural_processes, platipus, protonet, st_maml, tnp
from stmaml.methods.base import MethodConfig
from stmaml.nets.conv import Conv
from stmaml.recipes.base import Experiment, Modelling
from stmaml.training import TrainConfig

CONV = Conv(channels=32, norm="batch", precision="bfloat16")
INNER = InnerLoop(inner_lr=1e-2, inner_steps=5)


def _plain_multi(
    method: str, learner: MethodConfig, *, preset: str = "paper", tasks: plain_multi.Config | None = None
) -> Experiment:
    """5-way 5-shot. As many training tasks as HSML's 50,000 batches of 4, in batches of 16, with which MAML came two
    points further than with 8 (docs/plain-multi.md); the rate grows with the root of the batch."""
    judged = TrainConfig(val_every=500, val_tasks=400, val_metric="accuracy")
    training = replace(
        judged, steps=12_500, tasks_per_batch=16, outer_lr=1.4e-3, steps_per_call=50, checkpoint_every=500
    )
    modelling = Modelling(both_ways=preset == "best")
    return Experiment("plain-multi", method, preset, tasks or plain_multi.Config(), learner, modelling, training)


# Sizes of HSML and ARML are those of their authors' scripts for this benchmark; of the task encoder the paper gives two
# blocks of 6 channels and a two-layer network, and no width. Its KL weight was chosen on validation tasks
# (docs/log/plain-multi.md).
ENCODING = st_maml.Encoding((128, 128), z_hidden=(), z_size=128)
STMAML = st_maml.Config(conv=CONV, h_size=32, kl_weight=1.0, kl_mean=True, encoder=ENCODING, inner=INNER)
HSML = hsml.Config(conv=CONV, sample_size=64, code_size=128, embedding="rnn", sigma=10.0, inner=INNER)
ARML = arml.Config(conv=CONV, sample_size=128, code_size=128, embedding="rnn", num_vertices=4, sigma=8.0, inner=INNER)
# Where the kernel keeps five particles apart, each moves by a fifth of the step: so it moves by 0.01 too.
BMAML = bmaml.Config(conv=CONV, num_particles=5, meta_loss="query", inner=replace(INNER, inner_lr=5e-2))
PROTOTYPES = replace(STMAML, encoder=replace(ENCODING, reads="prototypes"), proto_head=True, kl_weight=0.01)
RECIPES = (
    _plain_multi("st-maml", STMAML),
    _plain_multi("maml", maml.Config(conv=CONV, inner=INNER)),
    _plain_multi("meta-sgd", meta_sgd.Config(conv=CONV, inner=INNER)),
    _plain_multi("bmaml", BMAML),
    # About one over the number of queries, as in the ELBO. With far less, q is free to read the query's labels from its
    # gradient, which p never sees: the fit in training is then better than any in a test.
    _plain_multi("platipus", platipus.Config(conv=CONV, kl_weight=0.01, inner=INNER)),
    _plain_multi("mmaml", mmaml.Config(conv=CONV, encoder=(64,), inner=INNER)),
    _plain_multi("hsml", HSML),
    _plain_multi("arml", ARML),
    _plain_multi("cnp", neural_processes.CNPConfig(conv=CONV, pooled="class")),
    _plain_multi("protonet", protonet.Config(conv=CONV)),
    _plain_multi("tnp", tnp.Config(conv=CONV)),
    # The last layer starts from class means, which also tell z what the task is; training images are turned left to
    # right, cut out and tinted at random, and in use images are seen both ways.
    _plain_multi("st-maml", PROTOTYPES, preset="best", tasks=plain_multi.Config(mirror=True, crop=0.6, tint=0.2)),
)
