"""The methods, by the names the command line uses."""

from stmaml.methods import maml, metasgd, stmaml
from stmaml.methods.base import MethodConfig

METHODS: dict[str, type[MethodConfig]] = {
    "maml": maml.Config,
    "meta-sgd": metasgd.Config,
    "st-maml": stmaml.Config,
}
