"""Programs that are compiled ahead of time, also for a GPU that is not there, and read from files where it is.

A GPU that is lent by the minute should not wait for a compiler. XLA needs no device to compile for one, only its
description (TARGET) and the same version of JAX, which files of other versions name. What is not found in the folder is
compiled at its first call and kept there. Reading a program can run code (pickle): name folders of your own alone."""

import lzma
import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.experimental import topologies
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from stmaml.nets import convolution

# Products of small matrices gain little from Triton, and trying kernels out takes longer than they run.
FLAGS = "--xla_gpu_enable_triton_gemm=false --xla_gpu_autotune_level=0"
os.environ.setdefault("XLA_FLAGS", FLAGS)  # read when the first array is made
TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048  core_count: 132
  shared_memory_per_block: 49152  shared_memory_per_core: 233472  shared_memory_per_block_optin: 232448
  fpus_per_core: 128  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: 4814080000000  l2_cache_size: 62914560  clock_rate_ghz: 1.98  device_memory_size: 150000000000
  cuda_compute_capability { major: 9 }  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  driver_version: "13.0.0"  runtime_version: "13.0.0"  compile_time_toolkit_version: "13.0.0"
}
platform_name: "CUDA"  dnn_version_info { major: 9 minor: 10 }  runtime_version { major: 13 }
device_description_str: "NVIDIA H200"
"""


class Programs:
    """Compiled programs by name, those in `folder` before others."""

    def __init__(self, folder: Path | None):
        self.folder = folder
        self.compiles = True  # else a program that is not in the folder is an error
        self.ready: dict[str, Callable[..., Any]] = {}

    def __call__(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """What `function`, called `name`, makes of arguments: a tree of arrays in plain containers."""
        leaves, flat = _flat(function, args)
        if name not in self.ready:
            self.ready[name] = self._read(name) or self._compile(name, flat, leaves)
        return self.ready[name](*leaves)

    def prepared(self, name: str, function: Callable[..., Any], like: tuple) -> Callable[..., Any]:
        """The program of `function`, called `name`, whose arguments are trees of arrays alone."""
        leaves, flat = _flat(function, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like))
        program = self._read(name) or self._compile(name, flat, leaves)
        return lambda *args: program(*jax.tree.leaves(args))

    def ahead(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        """Compiles for TARGET, unless that is done."""
        assert self.folder is not None
        if _path(self.folder, name, "gpu").exists():
            return
        leaves, flat = _flat(function, args)
        assert leaves, "shapes alone say nothing of what is an array"
        there = jax.sharding.SingleDeviceSharding(_target())
        like = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=there) for leaf in leaves]
        began = time.time()
        with as_on_gpu():
            lowered = jax.jit(flat).lower(*like)
        compiled: Any = lowered.compile()
        _write(_path(self.folder, name, "gpu"), compiled)
        size, needs = _path(self.folder, name, "gpu").stat().st_size, compiled.memory_analysis().temp_size_in_bytes
        took = f"{time.time() - began:.0f} s, {size:,} bytes"
        print(f"{name}: compiled ahead in {took}, needs {needs / 2**30:.1f} GiB", flush=True)

    def _read(self, name: str) -> Callable[..., Any] | None:
        if self.folder is None:
            return None
        path = _path(self.folder, name, jax.default_backend())
        if not path.exists():
            return None
        try:
            return deserialize_and_load(*pickle.loads(lzma.decompress(path.read_bytes())))
        except Exception as error:  # whatever is wrong with it, it can be compiled anew
            print(f"{path.name} cannot be used: {str(error)[:300]}", flush=True)
            return None

    def _compile(self, name: str, flat: Callable[..., Any], leaves: list[jax.Array]) -> Callable[..., Any]:
        if not self.compiles:
            raise SystemExit(f"{name} was not compiled ahead, or cannot be used.")
        began = time.time()
        compiled = jax.jit(flat).lower(*leaves).compile()
        print(f"{name}: compiled in {time.time() - began:.0f} s", flush=True)
        if self.folder is not None:
            _write(_path(self.folder, name, jax.default_backend()), compiled)
        return compiled


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Traces what a GPU with the kernels of this package would run, whatever device is here."""
    usual = jax.default_backend, convolution.has_kernels
    jax.default_backend, convolution.has_kernels = lambda: "gpu", lambda: True
    kind = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")  # for Pallas
    try:
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=kind)):
            yield
    finally:
        jax.default_backend, convolution.has_kernels = usual


def _path(folder: Path, name: str, backend: str) -> Path:
    return folder / f"{name}.{backend}-{jax.__version__}"


def _write(path: Path, compiled: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(lzma.compress(pickle.dumps(serialize(compiled)), preset=1))
    part.replace(path)


def _flat(function: Callable[..., Any], args: tuple) -> tuple[list[jax.Array], Callable[..., Any]]:
    """The arrays of arguments, and the function of these; keys are passed as numbers."""
    arrays, rest = eqx.partition(args, eqx.is_array)
    leaves, tree = jax.tree.flatten(arrays)
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]

    def flat(*leaves: jax.Array) -> Any:
        typed = [jr.wrap_key_data(leaf) if key else leaf for leaf, key in zip(leaves, is_key, strict=True)]
        return function(*eqx.combine(jax.tree.unflatten(tree, typed), rest))

    return [jr.key_data(leaf) if key else leaf for leaf, key in zip(leaves, is_key, strict=True)], flat


def _target() -> Any:
    found = topologies.get_topology_desc(platform="cuda", topology_name="", target_config=TARGET, topology="1x1x1")
    return found.devices[0]
