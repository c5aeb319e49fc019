"""Pictures in folders and tar files: written here, spoilt in every way users meet, and compared pixel by pixel."""

import io
import os
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stmaml.data import picture_decoding, pictures
from stmaml.data.picture_decoding import CMYK, GREY, UNREADABLE
from stmaml.data.picture_files import read_member
from stmaml.data.pictures import decode_pictures, load_pictures
from stmaml.errors import SourceError
from stmaml.progress import Told, listening
from tests.picture_files import colours, encoded, pack, write_picture


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STMAML_CACHE", str(folder))
    return folder


def album(folder: Path, count: int = 5) -> Path:
    for i in range(count):
        write_picture(folder / f"class{i % 2}" / f"{i}.png", colours(i))
    return folder


def decoded(content: bytes, tmp_path: Path, name: str = "one.png", **form) -> np.ndarray:
    """The only picture of a folder."""
    (tmp_path / "only").mkdir(exist_ok=True)
    (tmp_path / "only" / name).write_bytes(content)
    return decode_pictures([tmp_path / "only"], form.pop("size", 8), **form).pixels[0]


def test_every_picture_of_a_folder_comes_out_pixel_by_pixel_in_order(tmp_path):
    found = decode_pictures([album(tmp_path / "birds")], 8)
    assert found.name.tolist() == [f"class{i % 2}/{i}.png" for i in (0, 2, 4, 1, 3)]
    np.testing.assert_array_equal(found.pixels, [colours(i) for i in (0, 2, 4, 1, 3)])
    assert (found.sources, found.source.tolist(), found.problems) == (("birds",), [0] * 5, {})
    assert found.pixels.dtype == np.uint8
    assert found.size == 8


@pytest.mark.parametrize(
    ("ending", "mode"), [(".tar", "w"), (".tar.gz", "w:gz"), (".tgz", "w:gz"), (".tar.xz", "w:xz")]
)
def test_an_archive_gives_what_its_folder_gives(ending, mode, tmp_path):
    folder = album(tmp_path / "birds")
    archive = pack(folder, tmp_path / f"flowers{ending}", mode=mode)
    both = decode_pictures([folder, archive], 8)
    assert both.sources == ("birds", "flowers")
    assert both.source.tolist() == [0] * 5 + [1] * 5
    by_name = {
        name.removeprefix("birds/"): row for name, row in zip(both.name[5:].tolist(), both.pixels[5:], strict=True)
    }
    for name, row in zip(both.name[:5].tolist(), both.pixels[:5], strict=True):
        np.testing.assert_array_equal(by_name[name], row)


def test_the_same_pixels_have_the_same_digest_and_others_another(tmp_path):
    folder = album(tmp_path / "a")
    write_picture(folder / "again.bmp", colours(3))
    found = decode_pictures([folder], 8)
    digests = dict(zip(found.name.tolist(), found.digest.tolist(), strict=True))
    assert digests["again.bmp"] == digests["class1/3.png"]
    assert len(set(digests.values())) == 5


def test_pictures_are_scaled_to_the_size_asked_for(tmp_path):
    flat = np.full((30, 50, 3), (10, 200, 90), np.uint8)
    shape = decoded(encoded(flat), tmp_path, size=7)
    assert shape.shape == (7, 7, 3)
    np.testing.assert_array_equal(shape, np.full((7, 7, 3), (10, 200, 90)))


def test_without_a_crop_all_of_a_wide_picture_is_seen_and_with_one_its_middle(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 250  # the middle square is bright, what is left and right of it dark
    whole, middle = (decoded(encoded(wide), tmp_path, size=10, crop=crop) for crop in (False, True))
    assert whole[5, 0, 0] < 20
    assert whole[5, 5, 0] > 230
    np.testing.assert_array_equal(middle, np.full((10, 10, 3), 250))


def test_grey_and_cmyk_pictures_become_rgb_and_are_counted(tmp_path):
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    write_picture(tmp_path / "a" / "grey.png", grey)
    Image.new("CMYK", (8, 8), (255, 0, 0, 0)).save(tmp_path / "a" / "ink.jpg", quality=100)
    found = decode_pictures([tmp_path / "a"], 8)
    np.testing.assert_array_equal(found.pixels[0], np.repeat(grey[..., None], 3, axis=2))
    red, green, blue = found.pixels[1, 4, 4].astype(int)  # full cyan takes the red away
    assert red < 60 < 200 < min(green, blue)
    assert {kind: (p.count, p.examples) for kind, p in found.problems.items()} == {
        GREY: (1, ("a/grey.png",)),
        CMYK: (1, ("a/ink.jpg",)),
    }


def test_colour_becomes_grey_by_luminance_where_grey_is_asked_for(tmp_path):
    green = np.full((8, 8, 3), (0, 255, 0), np.uint8)
    found = decoded(encoded(green), tmp_path, channels="grey")
    assert found.shape == (8, 8, 1)
    assert abs(int(found[0, 0, 0]) - 0.587 * 255) < 1


def test_what_is_transparent_is_white(tmp_path):
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:4] = (200, 10, 10, 255)
    found = decoded(encoded(pixels), tmp_path)
    np.testing.assert_array_equal(found[:4], np.full((4, 8, 3), (200, 10, 10)))
    np.testing.assert_array_equal(found[4:], np.full((4, 8, 3), 255))


def test_a_picture_taken_sideways_is_turned_upright(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[0] = 255  # bright on top in the file; turned a quarter to the right, on the right
    picture, exif, buffer = Image.fromarray(pixels), Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    picture.save(buffer, "png", exif=exif)
    found = decoded(buffer.getvalue(), tmp_path)
    assert found[:, 7].min() == 255
    assert found[:, :7].max() == 0


def test_one_bad_picture_never_ends_a_run(tmp_path):
    folder = album(tmp_path / "birds")
    whole = encoded(colours(9, size=64), "jpeg")
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.jpeg").write_text("no picture")
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(folder / "deep.png")
    (folder / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    found = decode_pictures([folder], 8)
    assert len(found.name) == 5
    problem = found.problems[UNREADABLE]
    assert problem.count == 5
    assert [example.split(" (")[0] for example in problem.examples] == [
        "birds/cut.jpg",
        "birds/deep.png",
        "birds/empty.png",
        "birds/gone.jpg",
        "birds/text.jpeg",
    ]
    assert problem.examples[4] == "birds/text.jpeg (not a picture)"
    np.testing.assert_array_equal(found.pixels, decode_pictures([album(tmp_path / "other")], 8).pixels)


def test_links_back_are_not_followed_and_others_are(tmp_path):
    folder = album(tmp_path / "birds")
    (folder / "back").symlink_to(folder)
    (folder / "itself.png").symlink_to(folder / "itself.png")
    (folder / "more").symlink_to(album(tmp_path / "elsewhere"))
    found = decode_pictures([folder], 8)
    assert len(found.name) == 10
    assert sum(name.startswith("more/") for name in found.name.tolist()) == 5
    assert found.problems[UNREADABLE].examples == ("birds/itself.png (not a picture)",)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    folder = album(tmp_path / "birds")

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(SourceError, match=r"birds could not be listed: Permission denied. Make it readable"):
        decode_pictures([folder], 8)


def test_hidden_files_and_files_that_are_no_pictures_are_passed_over(tmp_path):
    folder = album(tmp_path / "birds")
    (folder / "._0.png").write_bytes(b"a fork of macOS")
    (folder / "README.txt").write_text("words")
    found = decode_pictures([pack(folder, tmp_path / "birds.tar"), folder], 8)
    assert (len(found.name), found.problems) == (10, {})


def test_a_folder_without_pictures_gives_none(tmp_path):
    (tmp_path / "bare").mkdir()
    found = decode_pictures([tmp_path / "bare"], 8)
    assert found.pixels.shape == (0, 8, 8, 3)


def test_what_was_decoded_is_opened_from_the_cache(tmp_path, cache, monkeypatch):
    folder = album(tmp_path / "birds")
    first = decode_pictures([folder], 8)
    assert first.path is not None
    assert first.path.parent.parent == cache
    monkeypatch.setattr(pictures, "_decode", None)  # not called again
    again = decode_pictures([folder], 8)
    np.testing.assert_array_equal(again.pixels, first.pixels)
    assert (again.name.tolist(), again.digest.tolist()) == (first.name.tolist(), first.digest.tolist())


@pytest.mark.parametrize("change", ["touch", "size", "channels", "crop", "more", "rename"])
def test_other_files_or_settings_are_decoded_anew(change, tmp_path):
    folder = album(tmp_path / "birds")
    before = decode_pictures([folder], 8).path
    form = {"size": (9, {}), "channels": (8, {"channels": "grey"}), "crop": (8, {"crop": True})}
    size, other = form.get(change, (8, {}))
    if change == "touch":
        os.utime(folder / "class0" / "0.png", ns=(1, 1))
    if change == "more":
        write_picture(folder / "more.png", colours(7))
    if change == "rename":
        (folder / "class0" / "0.png").rename(folder / "class0" / "00.png")
    after = decode_pictures([folder], size, **other)
    assert after.path != before
    assert len(after.name) == 5 + (change == "more")


def flip(path: Path) -> None:
    """Changes one pixel in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def age(path: Path) -> None:
    """Makes a file one of another version."""
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    buffer = io.BytesIO()
    np.save(buffer, np.array(0))
    members["version.npy"] = buffer.getvalue()
    with zipfile.ZipFile(path, "w") as new:
        for name, content in members.items():
            new.writestr(name, content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-50]), "is no complete file of decoded pictures"),
        (lambda path: path.write_bytes(b"short"), "is no complete file of decoded pictures"),
        (flip, "its pixels are not those that were written"),
        (age, "saved in version 0; expected 1"),
    ],
)
def test_a_cache_that_is_damaged_or_of_another_version_is_made_again(spoil, message, tmp_path):
    folder = album(tmp_path / "birds")
    path = decode_pictures([folder], 8).path
    assert path is not None
    spoil(path)
    with pytest.raises(SourceError, match=message):
        load_pictures(path)
    again = decode_pictures([folder], 8)
    np.testing.assert_array_equal(again.pixels, [colours(i) for i in (0, 2, 4, 1, 3)])


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(
        SourceError, match=r"could not be kept in .*: Not a directory. Make room there, or set STMAML_CACHE"
    ):
        decode_pictures([album(tmp_path / "birds")], 8)


@pytest.mark.parametrize(("ending", "mode"), [(".tar", "w"), (".tar.gz", "w:gz")])
def test_an_archive_cut_short_is_named(ending, mode, tmp_path):
    archive = pack(album(tmp_path / "birds"), tmp_path / f"cut{ending}", mode=mode)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 3])
    with pytest.raises(SourceError, match=rf"cut{ending} is damaged or cut short after .+ \(.*\). Copy, download"):
        decode_pictures([archive], 8)


def test_a_source_that_is_neither_folder_nor_archive_is_named(tmp_path):
    (tmp_path / "birds.zip").write_bytes(b"")
    with pytest.raises(SourceError, match=r"birds.zip is neither a folder nor a tar file. Name a folder of pictures"):
        decode_pictures([tmp_path / "birds.zip"], 8)
    with pytest.raises(SourceError, match="gone does not exist"):
        decode_pictures([tmp_path / "gone"], 8)


def test_progress_is_told_in_bytes_up_to_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(picture_decoding, "BATCH", 2)
    folder = album(tmp_path / "birds")
    told: list[Told] = []
    with listening(told.append):
        decode_pictures([folder, pack(folder, tmp_path / "b.tar")], 8)
    total = sum(p.stat().st_size for p in folder.rglob("*.png")) + (tmp_path / "b.tar").stat().st_size
    assert {(one.what, one.total) for one in told} == {("decoding pictures", total)}
    done = [one.done for one in told]
    assert done == sorted(done)
    assert len(done) > 3
    assert done[-1] == total


def test_a_text_beside_the_pictures_is_found_in_folder_and_archive(tmp_path):
    folder = album(tmp_path / "faces")
    (folder / "list.txt").write_text("words")
    archive = pack(folder, tmp_path / "faces.tar")
    for source in (folder, archive):
        assert read_member(source, "list.txt") == b"words"
        assert read_member(source, "other.txt") is None


def test_names_in_an_archive_begin_without_a_dot(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(album(tmp_path / "birds"), arcname="./birds")
    assert all(name.startswith("birds/class") for name in decode_pictures([tmp_path / "a.tar"], 8).name.tolist())


@pytest.mark.slow
def test_the_real_archives_open_at_once_the_second_time():
    root = Path(os.environ.get("STMAML_DATA") or Path(__file__).parents[2].parent / "shared" / "data") / "plain-multi"
    if not root.is_dir():
        pytest.skip("the real pictures are not there: set STMAML_DATA to the folder with 'plain-multi'")
    archives = sorted(root.glob("*.tar"))
    first = decode_pictures(archives, 84)
    began = time.monotonic()
    again = decode_pictures(archives, 84)
    assert time.monotonic() - began < 2
    assert (len(again.name), again.problems) == (len(first.name), {})
    with tarfile.open(archives[0]) as tar:
        content = tar.extractfile(str(again.name[0]))
        assert content is not None
        np.testing.assert_array_equal(np.asarray(Image.open(content).convert("RGB")), again.pixels[0])
