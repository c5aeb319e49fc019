"""Faces in CelebA's layout: what is read, what is left out and said, what is refused."""

import io

import numpy as np
import pytest
from PIL import Image

from stmaml.data.faces import read_faces
from stmaml.errors import SourceError
from tests.face_files import NAMES, faces, number_of, plain

SIZE = 16


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))


def small():
    return faces((6, 4, 4))


@pytest.mark.parametrize("form", ["folder", "faces.tar", "faces.tar.gz"])
def test_pictures_attributes_parts_and_people_are_read(form, tmp_path):
    files = small()
    path = files.write(tmp_path / form) if form == "folder" else files.pack(tmp_path / form)
    found = read_faces(path, SIZE)
    np.testing.assert_array_equal(number_of(found.pictures), np.arange(14))
    np.testing.assert_array_equal(found.attributes, files.attributes == 1)
    np.testing.assert_array_equal(found.partition, files.partition)
    np.testing.assert_array_equal(found.person, files.person)
    assert found.names == NAMES, "though the line of names ends in a blank"
    assert found.notes == ()


def test_the_middle_square_is_taken_and_scaled(tmp_path):
    files = small()
    tall = np.zeros((24, 16, 3), np.uint8)
    tall[4:20] = 200  # the middle square of a picture that is higher than wide, as CelebA's are
    buffer = io.BytesIO()
    Image.fromarray(tall).save(buffer, format="PNG")
    files.pictures["000001.jpg"] = buffer.getvalue()
    picture = read_faces(files.write(tmp_path / "f"), 8).pictures[0]
    assert picture.shape == (8, 8, 3)
    assert picture.min() > 180, "the filter looks a little beyond the edge; without a crop it would be 0 there"
    assert picture[2:6, 2:6].min() >= 199


def test_pictures_that_do_not_match_the_list_are_counted_named_and_left_out(tmp_path):
    files = small()
    del files.pictures["000003.jpg"]
    files.pictures["000002.jpg"] = b"not a picture"
    files.pictures["000099.jpg"] = plain(99)
    found = read_faces(files.write(tmp_path / "f"), SIZE)
    np.testing.assert_array_equal(number_of(found.pictures), [0, *range(3, 14)])
    np.testing.assert_array_equal(found.attributes, np.delete(files.attributes == 1, [1, 2], axis=0))
    notes = " / ".join(found.notes)
    assert "missing or unreadable: 2, such as 000002.jpg" in notes
    assert "not in list_attr_celeba.txt: 1, such as 000099.jpg" in notes
    assert "unreadable picture, left out: 1, such as" in notes


def test_a_picture_without_a_part_is_counted_and_left_out(tmp_path):
    folder = small().write(tmp_path / "f")
    path = folder / "list_eval_partition.txt"
    path.write_text(path.read_text().replace("000005.jpg 0\n", ""))
    found = read_faces(folder, SIZE)
    assert 4 not in number_of(found.pictures)
    assert found.notes == ("pictures not in list_eval_partition.txt: 1, such as 000005.jpg",)


def test_a_person_in_two_parts_stays_in_the_last_alone(tmp_path):
    files = small()
    assert files.person is not None
    files.person[0] = files.person[-1]  # a training picture of somebody in the test part
    files.person[7] = files.person[2]  # a validation picture of somebody in the training part
    found = read_faces(files.write(tmp_path / "f"), SIZE)
    assert found.person is not None
    numbers = set(number_of(found.pictures).tolist())
    assert numbers == set(range(14)) - {0, 2, 3}, "both pictures of the third person's training part go"
    by_part = [set(found.person[found.partition == part].tolist()) for part in range(3)]
    assert sum(len(people) for people in by_part) == len(set.union(*by_part))
    assert found.notes == ("picture of a person that is in another part too: 3, such as 000001.jpg",)


def test_the_same_picture_in_two_parts_stays_in_the_last_alone(tmp_path):
    files = small()
    files.pictures["000002.jpg"] = files.pictures["000013.jpg"]
    found = read_faces(files.write(tmp_path / "f"), SIZE)
    np.testing.assert_array_equal(number_of(found.pictures), [0, *range(2, 14)])
    assert found.notes == ("picture that is in another part too: 1, such as 000002.jpg",)


def test_without_people_nobody_is_checked_and_that_is_said(tmp_path):
    files = small()
    files.person = None
    found = read_faces(files.write(tmp_path / "f"), SIZE)
    assert found.person is None
    assert len(found.notes) == 1
    assert "identity_CelebA.txt" in found.notes[0]


def test_pictures_nobody_is_named_for_are_counted(tmp_path):
    folder = small().write(tmp_path / "f")
    people = (folder / "identity_CelebA.txt").read_text().replace("000001.jpg 7\n", "")
    (folder / "identity_CelebA.txt").write_text(people.replace("000003.jpg 8\n", "000003.jpg 99999999999\n"))
    found = read_faces(folder, SIZE)
    assert found.person is not None
    assert len(found.person) == 14
    assert found.person[2] == 99999999999
    assert (found.person == found.person[0]).sum() == 1
    (note,) = found.notes
    assert "not in identity_CelebA.txt, each taken for another person: 1, such as 000001.jpg" in note


def test_uncropped_pictures_of_the_same_names_are_not_taken_for_the_aligned(tmp_path):
    folder = small().write(tmp_path / "f")
    (folder / "img_celeba").mkdir()
    for path in (folder / "img_align_celeba").iterdir():
        (folder / "img_celeba" / path.name).write_bytes(plain(99))
    np.testing.assert_array_equal(number_of(read_faces(folder, SIZE).pictures), np.arange(14))


def test_a_file_that_is_no_archive_is_named(tmp_path):
    (tmp_path / "faces.txt").write_text("words")
    with pytest.raises(SourceError, match=r"faces.txt is neither a folder nor a tar file"):
        read_faces(tmp_path / "faces.txt", SIZE)


def test_a_saved_file_is_enough(tmp_path):
    found = read_faces(small().write(tmp_path / "f"), SIZE)
    found.save(tmp_path / "faces.npz")
    again = read_faces(tmp_path / "faces.npz", SIZE)
    for name in ("pictures", "attributes", "partition", "person"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    assert (again.names, again.notes) == (found.names, found.notes)
    with pytest.raises(SourceError, match="16 x 16 pixels; use --image-size 16"):
        read_faces(tmp_path / "faces.npz", 84)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "faces.npz").read_bytes()[:2000])
    with pytest.raises(SourceError, match="no complete file of saved faces"):
        read_faces(tmp_path / "cut.npz", SIZE)
    np.savez(tmp_path / "other.npz", version=np.array(99))
    with pytest.raises(SourceError, match="version 99 instead of 1"):
        read_faces(tmp_path / "other.npz", SIZE)
    with np.load(tmp_path / "faces.npz") as saved:
        arrays = {name: saved[name] for name in saved}
    for name in ("attributes", "pictures"):
        np.savez(tmp_path / "short.npz", **{**arrays, name: arrays[name][1:]})
        with pytest.raises(SourceError, match="no complete file of saved faces"):
            read_faces(tmp_path / "short.npz", SIZE)


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("list_attr_celeba.txt", "14\n", "15\n", "promises 15 pictures in its first line but describes 14"),
        ("list_attr_celeba.txt", "14\n", "", "must begin with the number of pictures"),
        ("list_attr_celeba.txt", " Young ", " Bald ", "names the attribute 'Bald' twice"),
        (
            "list_attr_celeba.txt",
            "000003.jpg ",
            "000003.jpg  0 ",
            "line 5 of list_attr_celeba.txt has 41 values for 40",
        ),
        (
            "list_attr_celeba.txt",
            "000003.jpg -1",
            "000003.jpg  0",
            "line 5 of list_attr_celeba.txt holds '0'; expected 1",
        ),
        ("list_eval_partition.txt", "000002.jpg 0", "000002.jpg 3", "000002.jpg into part 3; expected 0, 1 or 2"),
        (
            "list_eval_partition.txt",
            "000002.jpg 0",
            "000002.jpg x",
            "line 2 of list_eval_partition.txt is '000002.jpg x'",
        ),
        ("list_eval_partition.txt", ".jpg 1\n", ".jpg 2\n", "no validation picture"),
        ("list_eval_partition.txt", "0000", "1000", "not of one set"),
        ("identity_CelebA.txt", "000001.jpg 7", "000001.jpg", "line 1 of identity_CelebA.txt"),
        ("identity_CelebA.txt", "000001.jpg 7", "000001.jpg --7", "line 1 of identity_CelebA.txt"),
        ("identity_CelebA.txt", "000001.jpg 7", f"000001.jpg 7{'0' * 18}", "line 1 of identity_CelebA.txt"),
        ("list_attr_celeba.txt", "14\n", "²\n", "must begin with the number of pictures"),
    ],
)
def test_bad_lists_are_one_sentence(name, old, new, said, tmp_path):
    files = small()
    files.attributes[2, 0] = -1
    folder = files.write(tmp_path / "f")
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))
    with pytest.raises(SourceError, match=said):
        read_faces(folder, SIZE)


@pytest.mark.parametrize("name", ["list_attr_celeba.txt", "list_eval_partition.txt"])
def test_a_missing_list_is_named(name, tmp_path):
    folder = small().write(tmp_path / "f")
    (folder / name).unlink()
    with pytest.raises(SourceError, match=f"has no {name}. Expected CelebA's layout"):
        read_faces(folder, SIZE)
