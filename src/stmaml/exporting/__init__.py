"""Learners as graphs that run without JAX: one file of ONNX, what its columns mean, and a reader of 60 lines."""
