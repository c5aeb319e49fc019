"""IDX files and folders of pictures: written here byte by byte, and spoilt in every way users meet."""

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stmaml.data import idx
from stmaml.data.idx import Split, holds_images, read_grey_folder, read_idx, read_images, read_split
from stmaml.errors import SourceError
from stmaml.progress import Told, listening
from tests.idx_files import grey, idx_bytes, write_family, write_idx

BY_HAND = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3]) + bytes([1, 2, 3, 250, 251, 255])
IMAGES = "train-images-idx3-ubyte.gz"


def real_digits() -> Path:
    root = os.environ.get("STMAML_DATA") or Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(root) / "digits"
    if not folder.is_dir():
        pytest.skip("the real digits are not there: set STMAML_DATA to the folder with 'digits'")
    return folder


def test_a_file_written_by_hand_is_read_as_the_format_says(tmp_path):
    path = tmp_path / "some-file"
    path.write_bytes(BY_HAND)
    np.testing.assert_array_equal(read_idx(path), [[[1, 2, 3]], [[250, 251, 255]]])
    assert read_idx(path).dtype == np.uint8


@pytest.mark.parametrize(("name", "compressed"), [("a.gz", True), ("a", True), ("a.gz", False), ("a", False)])
def test_compression_is_seen_from_the_content(name, compressed, tmp_path):
    path = tmp_path / name
    path.write_bytes(gzip.compress(BY_HAND) if compressed else BY_HAND)
    assert read_idx(path).shape == (2, 1, 3)


@pytest.mark.parametrize("ending", [".gz", ""])
@pytest.mark.parametrize("labels", [True, False])
def test_both_parts_of_a_set_are_read(ending, labels, tmp_path):
    train, test = grey(7), grey(3, first=100)
    write_family(tmp_path, train=train, test=test, labels=labels, ending=ending)
    np.testing.assert_array_equal(read_split(tmp_path, "train").images, train)
    np.testing.assert_array_equal(read_split(tmp_path, "t10k").images, test)
    assert holds_images(tmp_path)
    assert not holds_images(tmp_path.parent)


def test_the_names_with_a_dot_are_known_too(tmp_path):
    write_idx(tmp_path / "train-images.idx3-ubyte", grey(2))
    write_idx(tmp_path / "train-labels.idx1-ubyte", np.arange(3))
    with pytest.raises(SourceError, match=r"holds 2 images but train-labels.idx1-ubyte has 3 labels"):
        read_split(tmp_path, "train")


def test_only_files_with_a_published_sum_are_verified(tmp_path, monkeypatch):
    write_family(tmp_path, train=grey(7), test=grey(3))
    assert not read_split(tmp_path, "train").verified
    md5 = hashlib.md5((tmp_path / IMAGES).read_bytes()).hexdigest()
    monkeypatch.setitem(idx.PUBLISHED_MD5, md5, "made up")
    assert read_split(tmp_path, "train").verified
    assert not read_split(tmp_path, "t10k").verified


def spoil(folder: Path, content: bytes) -> str:
    """A folder with this as its training images, and the message it is refused with."""
    folder.mkdir(exist_ok=True)
    (folder / IMAGES).write_bytes(content)
    with pytest.raises(SourceError) as caught:
        read_split(folder, "train")
    assert str(folder / IMAGES) in str(caught.value)
    return str(caught.value)


def test_a_truncated_gzip_is_named(tmp_path):
    whole = gzip.compress(idx_bytes(grey(50)))
    for cut in (3, len(whole) // 2, len(whole) - 4):
        assert "is a gzip file that is cut short or damaged" in spoil(tmp_path, whole[:cut])


def test_a_damaged_gzip_is_named(tmp_path):
    whole = bytearray(gzip.compress(idx_bytes(grey(50))))
    whole[len(whole) // 2] ^= 0xFF
    assert "is a gzip file that is cut short or damaged" in spoil(tmp_path, bytes(whole))


def test_data_that_end_early_or_late_are_named(tmp_path):
    whole = idx_bytes(grey(2))
    short = spoil(tmp_path, whole[:-5])
    assert "promises 2 x 5 x 4 = 40 bytes of data but has 35. The file is cut short or damaged" in short
    assert "but has 41" in spoil(tmp_path, gzip.compress(whole + b"x"))
    assert "bytes of data but has 0" in spoil(tmp_path, whole[:10])
    huge = bytes((0, 0, 8, 3)) + b"\xff" * 12
    assert f"promises 4294967295 x 4294967295 x 4294967295 = {(2**32 - 1) ** 3} bytes" in spoil(tmp_path, huge)


@pytest.mark.parametrize(
    ("content", "begins"),
    [
        (b"<!DOCTYPE html>", "0x3c21444f"),
        (idx_bytes(np.arange(4)), "0x00000801"),
        (bytes((0, 0, 0x0D, 3)) + bytes(12), "0x00000d03"),
        (b"", "0x"),
        (bytes((0, 0, 8)), "0x000008"),
    ],
)
@pytest.mark.parametrize("compressed", [True, False])
def test_a_wrong_magic_number_is_named(content, begins, compressed, tmp_path):
    message = spoil(tmp_path, gzip.compress(content) if compressed else content)
    assert f"it begins with {begins} instead of 0x00000803. Replace the file." in message


def test_a_file_of_any_rank_must_still_be_idx(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"no")
    with pytest.raises(SourceError, match=r"instead of 0x00000803 \(images\) or 0x00000801 \(labels\)"):
        read_idx(path)


def test_images_without_pixels_are_refused(tmp_path):
    assert "holds no pixels: its shape is 0 x 28 x 28" in spoil(tmp_path, idx_bytes(np.zeros((0, 28, 28))))


def test_images_and_labels_of_different_length_are_refused(tmp_path):
    write_family(tmp_path, train=grey(7), test=grey(3))
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.arange(4))
    assert len(read_split(tmp_path, "train").images) == 7
    with pytest.raises(SourceError, match=r"holds 3 images but t10k-labels-idx1-ubyte.gz has 4 labels"):
        read_split(tmp_path, "t10k")


def test_a_missing_part_says_what_to_put_where(tmp_path):
    write_idx(tmp_path / IMAGES, grey(2))
    with pytest.raises(SourceError, match=r"has no t10k-images-idx3-ubyte.gz .* nor pictures in test/"):
        read_images(tmp_path, "t10k")


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(SourceError, match="could not be read: No such file"):
        read_idx(tmp_path / "none")


def write_pictures(folder: Path, images: np.ndarray, *, ending: str = ".png") -> None:
    folder.mkdir(parents=True)
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{i:03d}{ending}")


def test_folders_of_pictures_are_read_in_the_order_of_their_names(tmp_path):
    write_pictures(tmp_path / "train", grey(12))
    write_pictures(tmp_path / "test", grey(2, first=90))
    (tmp_path / "train" / "notes.txt").write_text("not a picture")
    told: list[Told] = []
    with listening(told.append):
        split = read_images(tmp_path, "train")
    np.testing.assert_array_equal(split.images, grey(12))
    assert isinstance(split, Split)
    assert not split.verified
    assert told == [Told("reading images", i, 12) for i in range(1, 13)]
    np.testing.assert_array_equal(read_images(tmp_path, "t10k").images, grey(2, first=90))


def test_pictures_below_folders_of_classes_are_found(tmp_path):
    write_pictures(tmp_path / "b", grey(1))
    write_pictures(tmp_path / "a", grey(1, first=50), ending=".PNG")
    assert read_grey_folder(tmp_path)[:, 0, 0].tolist() == [50, 0]


def test_grey_pictures_saved_as_colour_keep_their_values(tmp_path):
    image = grey(1)[0]
    write_pictures(tmp_path / "train", np.stack([image] * 3, axis=-1)[None])
    np.testing.assert_array_equal(read_grey_folder(tmp_path / "train")[0], image)


def test_pictures_of_different_sizes_are_refused(tmp_path):
    write_pictures(tmp_path / "a", grey(2))
    write_pictures(tmp_path / "b", grey(1, height=6))
    with pytest.raises(SourceError, match=r"000.png has 6 x 4 pixels but 000.png has 5 x 4; all pictures"):
        read_grey_folder(tmp_path)


def test_a_broken_picture_is_named(tmp_path):
    write_pictures(tmp_path / "a", grey(1))
    whole = (tmp_path / "a" / "000.png").read_bytes()
    for content in (whole[:40], b"not a picture"):
        (tmp_path / "a" / "000.png").write_bytes(content)
        with pytest.raises(SourceError, match=r"000.png is not a readable picture"):
            read_grey_folder(tmp_path)


def test_whatever_a_decoder_makes_of_a_broken_picture_is_one_sentence(tmp_path):
    write_pictures(tmp_path / "a", grey(1))
    whole = (tmp_path / "a" / "000.png").read_bytes()
    (tmp_path / "a" / "000.png").write_bytes(whole[:11] + bytes([5]) + whole[12:])  # a header said to be too short
    with pytest.raises(SourceError, match=r"000.png is not a readable picture"):
        read_grey_folder(tmp_path)


def test_pictures_with_more_than_a_byte_of_grey_are_refused(tmp_path):
    Image.fromarray(np.full((4, 4), 3000, dtype=np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(SourceError, match=r"is a picture of mode I.*expected 8-bit"):
        read_grey_folder(tmp_path)


def test_a_folder_without_pictures_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"has no .png or .jpg pictures"):
        read_grey_folder(tmp_path)


def test_the_real_test_images_are_the_published_ones():
    folder = real_digits()
    for name in ("mnist", "fashion-mnist"):
        split = read_split(folder / name, "t10k")
        assert split.verified
        assert split.images.shape == (10_000, 28, 28)
    first = read_split(folder / "mnist", "t10k").images[0]
    assert first[0].max() == 0
    assert first[10].max() == 254  # the famous first seven: its upper bar
