"""`python -m stmaml` is the command `stmaml`."""

from stmaml.cli import main

main()
