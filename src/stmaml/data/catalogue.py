"""Where the data of the benchmarks come from: addresses, licences and checksums, in one place."""

import re
from dataclasses import dataclass

from stmaml.errors import SettingError, closest

MIB = 1 << 20


@dataclass(frozen=True)
class Origin:
    """One file of a data set."""

    path: str
    """Where it belongs, below the data folder."""
    url: str
    most: int
    """Bytes that it cannot exceed."""
    digest: str = ""
    """`sha256:` or `md5:` and the checksum that is published; empty where none is."""


@dataclass(frozen=True)
class Collection:
    """What one benchmark reads."""

    benchmark: str
    folder: str
    """Below the folder that STMAML_DATA names."""
    licence: str
    files: tuple[Origin, ...] = ()
    by_hand: str = ""
    """What to do where no address can be fetched from."""


def _digits(name: str, base: str, most: tuple[int, ...], digests: tuple[str, ...]) -> tuple[Origin, ...]:
    """The four files of a set like MNIST."""
    parts = (f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    each = zip(parts, most, digests, strict=True)
    return tuple(Origin(f"digits/{name}/{file}", f"{base}/{file}", size * MIB, digest) for file, size, digest in each)


SIZES = (64, 1, 16, 1)  # MiB
MNIST = _digits(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist",  # a copy: the authors' own page no longer gives the files
    SIZES,
    (
        "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
FASHION = _digits(
    "fashion-mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    SIZES,
    (
        "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)
KMNIST = _digits(
    "kmnist",
    "https://codh.rois.ac.jp/kmnist/dataset/kmnist",
    SIZES,
    (
        "md5:bdb82020997e1d708af4cf47b453dcf7",
        "md5:e144d726b3acfaa3e44228e80efcd344",
        "md5:5c965bf0a639b31b8f53240b1b52f4d7",
        "md5:7320c461ea6c1c855c0b718fb2a4b134",
    ),
)
NOAA = "https://www.ncei.noaa.gov/data/global-summary-of-the-day/archive"
NOAA_LICENCE = (
    "NOAA/NCEI Global Summary of the Day: free for research. WMO Resolution 40 restricts the commercial re-export of "
    "data from outside the US."
)


def _year(year: int, folder: str) -> Origin:
    return Origin(f"{folder}/{year}.tar.gz", f"{NOAA}/{year}.tar.gz", 1024 * MIB)


COLLECTIONS: dict[str, Collection] = {
    "mnist": Collection("completion", "digits", "MNIST (LeCun, Cortes, Burges): usually given as CC BY-SA 3.0.", MNIST),
    "fashion-mnist": Collection("completion", "digits", "Fashion-MNIST (Zalando Research): MIT.", FASHION),
    "kmnist": Collection("completion", "digits", "Kuzushiji-MNIST (ROIS-CODH): CC BY-SA 4.0.", KMNIST),
    "gsod-2019": Collection("weather", "gsod", NOAA_LICENCE, (_year(2019, "gsod"),)),
    "gsod-2022": Collection("weather", "gsod-2022", NOAA_LICENCE, (_year(2022, "gsod-2022"),)),
    "plain-multi": Collection(
        "plain-multi",
        "plain-multi",
        "Four collections, each under its own terms, most for non-commercial research alone.",
        by_hand="put <set>/{train,val,test}/<class>/ of pictures, or <set>.tar, into plain-multi/; the authors of HSML "
        "and ARML share theirs by way of a browser (docs/plain-multi.md)",
    ),
    "celeba": Collection(
        "celeba",
        "faces",
        "CelebA: non-commercial research alone; its authors give it out by way of a browser.",
        by_hand="put img_align_celeba/, list_attr_celeba.txt and list_eval_partition.txt into faces/ (docs/celeba.md)",
    ),
}


def collection(name: str) -> Collection:
    """What a name stands for; `gsod-1999` is any year of weather."""
    if name in COLLECTIONS:
        return COLLECTIONS[name]
    if found := re.fullmatch(r"gsod-(19[3-9]\d|20\d\d)", name):
        folder = f"gsod-{found[1]}"
        return Collection("weather", folder, NOAA_LICENCE, (_year(int(found[1]), folder),))
    meant = " or ".join(closest(name, COLLECTIONS)) or f"one of {', '.join(COLLECTIONS)}"
    raise SettingError(f"there is no data set '{name}'. Did you mean {meant}?")
