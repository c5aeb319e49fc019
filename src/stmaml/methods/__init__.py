"""The methods, by the names the command line uses."""

from stmaml.methods import arml, bmaml, hsml, maml, meta_sgd, mmaml, neural_processes, platipus, protonet, st_maml, tnp
from stmaml.methods.base import MethodConfig

METHODS: dict[str, type[MethodConfig]] = {
    "anp": neural_processes.ANPConfig,
    "arml": arml.Config,
    "bmaml": bmaml.Config,
    "cnp": neural_processes.CNPConfig,
    "hsml": hsml.Config,
    "maml": maml.Config,
    "meta-sgd": meta_sgd.Config,
    "mmaml": mmaml.Config,
    "np": neural_processes.NPConfig,
    "platipus": platipus.Config,
    "protonet": protonet.Config,
    "st-maml": st_maml.Config,
    "tnp": tnp.Config,
}
