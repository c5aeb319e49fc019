"""Readers of files: formats in, plain arrays out. Nothing here knows of tasks or methods."""
