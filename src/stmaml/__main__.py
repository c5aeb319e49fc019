"""The command `stmaml`, also as `python -m stmaml`: it listens to Ctrl-C before it imports anything else."""

import gc
import os
import signal


def main() -> None:
    """Runs the command, and ends the process with its exit code."""
    gc.disable()  # till all is imported: it would look through the same modules again and again
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)  # until `listening` can tell more
    from stmaml.cli.stopping import listening

    listening(_command)


def _leave(number: int, frame: object) -> None:
    os.write(2, b"stopped.\n")
    os._exit(128 + number)


def _command() -> None:
    from stmaml.cli import main

    main()


if __name__ == "__main__":
    main()
