"""The benchmarks, by the names the command line uses."""

from stmaml.benchmarks import completion, regression2d, weather
from stmaml.benchmarks.base import BenchmarkConfig

BENCHMARKS: dict[str, type[BenchmarkConfig]] = {
    "regression2d": regression2d.Config,
    "completion": completion.Config,
    "weather": weather.Config,
}
