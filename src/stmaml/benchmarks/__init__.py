"""The benchmarks, by the names the command line uses."""

from stmaml.benchmarks import celeba, completion, plain_multi, regression2d, weather
from stmaml.benchmarks.base import BenchmarkConfig

BENCHMARKS: dict[str, type[BenchmarkConfig]] = {
    "regression2d": regression2d.Config,
    "completion": completion.Config,
    "weather": weather.Config,
    "plain-multi": plain_multi.Config,
    "celeba": celeba.Config,
}
