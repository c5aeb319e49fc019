"""The command `stmaml`, also as `python -m stmaml`: it listens to Ctrl-C before it imports anything heavy."""

from stmaml.cli.stopping import listening


def main() -> None:
    """Runs the command, and ends the process with its exit code."""
    listening(_command)


def _command() -> None:
    from stmaml.cli import main

    main()


if __name__ == "__main__":
    main()
