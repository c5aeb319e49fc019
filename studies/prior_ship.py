"""Puts weights of the prior over tables into the package, with their card and digest.

python studies/prior_ship.py WEIGHTS CARD"""

import argparse
import shutil
from pathlib import Path

from stmaml.prior.weights import ABOUT, WEIGHTS, digest_of, load_weights, shipped_folder
from stmaml.runs import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("card", type=Path)
    flags = parser.parse_args()
    load_weights(flags.weights)  # refuses what is none
    folder = shipped_folder()
    folder.mkdir(exist_ok=True)
    shutil.copyfile(flags.weights, folder / WEIGHTS)
    if flags.card.resolve() != (folder / "card.md").resolve():
        shutil.copyfile(flags.card, folder / "card.md")
    write_json(folder / ABOUT, {"sha256": digest_of(folder / WEIGHTS)})


if __name__ == "__main__":
    main()
