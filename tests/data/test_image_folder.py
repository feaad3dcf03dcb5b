"""Class folders of images on disk and in zips."""

from __future__ import annotations

import errno
import os
import re
import signal
import zipfile
from pathlib import Path

import pytest
import torch
from helpers.data_files import class_folders, noise_image, write_files, write_zip

from quatsphere.data import archives, load_dataset
from quatsphere.errors import DataError

pytestmark = pytest.mark.usefixtures("in_process")


def test_folder_and_zip_are_the_same_data_set(tmp_path: Path) -> None:
    a = load_dataset("folder", root=write_files(tmp_path / "tree", class_folders()))
    b = load_dataset("folder", root=write_zip(tmp_path / "tree.zip", class_folders()))
    assert a.fingerprint == b.fingerprint
    assert torch.equal(a.train.images, b.train.images)
    assert a.train.images.shape[1:] == (3, 32, 32)
    assert a.classes == ("a", "b", "c")
    assert [len(split) for split in (a.train, a.val, a.test)] == [15, 3, 6]
    assert "24 of 24 images resized to 32 x 32" in a.notes


def test_size_changes_pixels_but_not_identity_or_split(tmp_path: Path) -> None:
    root = write_files(tmp_path, class_folders())
    small, large = (load_dataset("folder", root=root, image_size=size) for size in (8, 16))
    assert small.train.images.shape[-1] == 8
    assert large.train.images.shape[-1] == 16
    assert small.fingerprint == large.fingerprint
    assert torch.equal(small.val.labels, large.val.labels)


@pytest.mark.parametrize("prefix", ["", "train/", "photos/", "x/photos/train/"])
def test_one_pool_is_split(tmp_path: Path, prefix: str) -> None:
    files = {f"{prefix}{k}/{i}.png": noise_image(100 * label + i) for label, k in enumerate("ab") for i in range(20)}
    data = load_dataset("folder", root=write_files(tmp_path, files), test_fraction=0.25)
    assert [len(split) for split in (data.train, data.val, data.test)] == [28, 2, 10]


def test_part_of_cifar100_as_folder_and_as_cifar(data_folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(data_folder / "cifar100-part.zip") as archive:
        seen: dict[str, int] = {}
        files = {}
        for name in archive.namelist():
            group = name.rpartition("/")[0]
            seen[group] = seen.get(group, 0) + 1
            if seen[group] <= 2:
                files[name] = archive.read(name)
    root = write_zip(tmp_path / "part.zip", files)
    as_folder, as_cifar = load_dataset("folder", root=root), load_dataset("cifar100", root=root)
    assert as_folder.fingerprint == as_cifar.fingerprint
    assert len(as_cifar.classes) == 100
    assert any("only a PART of CIFAR-100: 200 training and 200 test images" in note for note in as_cifar.notes)


def test_all_suffixes_and_nested_folders_are_read(tmp_path: Path) -> None:
    files = {
        "a/1.PNG": noise_image(1),
        "a/sub/2.jpg": noise_image(2, kind="JPEG"),
        "b/3.jpeg": noise_image(3, kind="JPEG"),
        "b/4.webp": noise_image(4, kind="WEBP"),
    }
    files |= {"a/5.png": noise_image(5), "b/6.png": noise_image(6)}
    data = load_dataset("folder", root=write_files(tmp_path, files))
    assert sum(len(split) for split in (data.train, data.val, data.test)) == 6


def test_other_files_are_noted_and_system_files_are_not(tmp_path: Path) -> None:
    extra = {
        "train/a/x.bmp": b"BM",
        "readme.txt": b"",
        "val/a/1.png": noise_image(9),
        ".DS_Store": b"",
        "train/a/Thumbs.db": b"",
    }
    data = load_dataset("folder", root=write_files(tmp_path, class_folders() | extra))
    assert any(note.startswith("3 files ignored: no PNG, JPEG or WebP in a class folder (") for note in data.notes)
    assert len(data.train) + len(data.val) == 18


BAD = {
    "train/a/empty.png": b"",
    "train/a/cut.png": noise_image(1, (64, 64, 3))[:2000],
    "train/b/cut.jpg": noise_image(2, (64, 64, 3), "JPEG")[:1500],
    "train/b/text.png": b"hello",
    "train/c/gif.png": b"GIF89a" + bytes(20),
}


def test_bad_images_are_named_or_skipped(tmp_path: Path) -> None:
    root = write_files(tmp_path, class_folders() | BAD)
    with pytest.raises(DataError) as caught:
        load_dataset("folder", root=root)
    line = r"bad image train/\S+ \(.*\) and 4 more; .* --data\.skip_bad 5 \(now 0\)"
    assert re.fullmatch(line, str(caught.value))
    assert all(name in " ".join((str(caught.value), *caught.value.__notes__)) for name in BAD)
    with pytest.raises(DataError, match=r"and 4 more; .*\(now 4\)"):
        load_dataset("folder", root=root, skip_bad=4)
    data = load_dataset("folder", root=root, skip_bad=5)
    note = next(note for note in data.notes if "skipped" in note)
    assert note.startswith("5 images skipped: ")
    assert all(name in note for name in BAD)
    assert len(data.train) + len(data.val) == 18
    with pytest.raises(DataError, match=r"and 4 more"):  # from the cache, too
        load_dataset("folder", root=root)
    one = write_files(tmp_path / "one", class_folders() | {"test/c/only.png": b"hello"})
    with pytest.raises(DataError, match=r"^bad image test/c/only\.png \(not a PNG, JPEG or WebP image\); "):
        load_dataset("folder", root=one)


def test_class_with_bad_images_only(tmp_path: Path) -> None:
    files = class_folders(classes="ab") | {"train/z/1.png": b"", "test/z/1.png": noise_image(9)}
    with pytest.raises(DataError, match="class 'z' has no usable training images"):
        load_dataset("folder", root=write_files(tmp_path, files), skip_bad=9)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"^no PNG, JPEG or WebP images in .*looked for train/<class>/\* and <class>/\*"),
        ({"a/x.txt": b""}, r"^no PNG, JPEG or WebP images in"),
        ({"x.png": noise_image(1)}, r"^no PNG, JPEG or WebP images in"),
        (
            {"a/1.png": noise_image(1), "a/2.png": noise_image(2)},
            r"^only one class, 'a' \(.*\); a classifier needs two or more$",
        ),
        (
            class_folders() | {"train/empty/x.txt": b""},
            r"^class 'empty' has no images \(train of .*\); add some or remove the folder$",
        ),
        (
            class_folders() | {"train/d/1.png": noise_image(1)},
            r"different classes \(4 and 3 in .*first difference 'd', only in train\)",
        ),
        (
            class_folders() | {"test/d/1.png": noise_image(1)},
            r"different classes \(3 and 4 in .*first difference 'd', only in test\)",
        ),
        ({"test/a/1.png": noise_image(1), "test/b/1.png": noise_image(2)}, r"has test/ but no train/"),
    ],
    ids=["nothing", "no image", "no class", "one class", "empty class", "extra in train", "extra in test", "no train"],
)
def test_wrong_classes(files: dict[str, bytes], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load_dataset("folder", root=write_files(tmp_path, files))
    assert "\n" not in str(caught.value)


def test_empty_class_folder(tmp_path: Path) -> None:
    (write_files(tmp_path, class_folders()) / "test" / "hollow").mkdir()
    with pytest.raises(DataError, match=r"class 'hollow' has no images \(test of"):
        load_dataset("folder", root=tmp_path)


def test_images_in_both_train_and_test_are_counted(tmp_path: Path) -> None:
    files = class_folders()
    files["test/b/again.png"] = files["train/a/0.png"]
    files["test/b/twice.png"] = files["train/a/0.png"]
    files["train/c/copy.png"] = files["train/c/0.png"]
    notes = load_dataset("folder", root=write_files(tmp_path, files)).notes
    assert "2 of 8 test images also in train, pixel for pixel" in notes
    assert "1 of 19 training images repeat another" in notes


def test_copies_across_classes_stay_in_one_split(tmp_path: Path) -> None:
    files = {f"{kind}/{i}.png": noise_image(i) for kind in "ab" for i in range(12)} | {
        "a/x.png": noise_image(90),
        "b/y.png": noise_image(91),
    }
    data = load_dataset("folder", root=write_files(tmp_path, files), val_fraction=0.3)
    sets = [{image.numpy().tobytes() for image in split.images} for split in (data.train, data.val, data.test)]
    assert not sets[0] & sets[1]
    assert not sets[0] & sets[2]
    assert not sets[1] & sets[2]


def test_symlink_loop(tmp_path: Path) -> None:
    root = write_files(tmp_path, class_folders())
    (root / "train" / "a" / "loop").symlink_to(root)
    with pytest.raises(DataError, match=r"^symlink loop at .*/train/a/loop/?; remove the link$"):
        load_dataset("folder", root=root)


def test_links_without_loops_are_followed(tmp_path: Path) -> None:
    store = write_files(tmp_path / "store", class_folders())
    (tmp_path / "view").mkdir()
    for split in ("train", "test"):
        (tmp_path / "view" / split).symlink_to(store / split)
    assert load_dataset("folder", root=tmp_path / "view").fingerprint == load_dataset("folder", root=store).fingerprint


def test_unreadable_files_are_named_and_do_not_hang(tmp_path: Path) -> None:
    root = write_files(tmp_path, class_folders())
    os.mkfifo(root / "train" / "a" / "pipe.png")
    (root / "train" / "a" / "self.png").symlink_to("self.png")
    (root / "train" / "a" / "dangling.png").symlink_to("nowhere")
    with pytest.raises(
        DataError, match=r"^bad image train/a/dangling\.png \(cannot read .*No such file.*\) and 2 more"
    ):
        load_dataset("folder", root=root)
    notes = load_dataset("folder", root=root, skip_bad=3).notes
    assert any("pipe.png (cannot read" in note and "not a regular file" in note for note in notes)
    assert any("Too many levels of symbolic links" in note for note in notes)


def test_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is simulated, because root, who may run the tests, can read everything."""
    root = write_files(tmp_path, class_folders())
    read_regular = archives.read_regular

    def refuse(path: Path, limit: int) -> bytes:
        if path == root / "train" / "a" / "0.png":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read_regular(path, limit)

    monkeypatch.setattr(archives, "read_regular", refuse)
    with pytest.raises(DataError, match=r"bad image train/a/0\.png .*Permission denied"):
        load_dataset("folder", root=root)


def test_undecodable_names_are_escaped(tmp_path: Path) -> None:
    root = write_files(tmp_path, class_folders())
    (root / "train" / "a" / os.fsdecode(b"caf\xe9\n.png")).write_bytes(b"text")
    with pytest.raises(DataError, match=r"^bad image train/a/caf\\udce9\\n\.png "):
        load_dataset("folder", root=root)
    for split in ("train", "test"):
        os.rename(root / split / "b", root / split / os.fsdecode(b"\xff"))
    data = load_dataset("folder", root=root, skip_bad=1)
    assert data.classes == ("a", "c", "\\udcff")


def test_damaged_zip_member_is_a_bad_image(tmp_path: Path) -> None:
    root = write_zip(tmp_path / "x.zip", class_folders())
    data = bytearray(root.read_bytes())
    data[data.index(b"IDAT") + 20] ^= 1
    root.write_bytes(data)
    with pytest.raises(DataError, match=r"^bad image train/a/0\.png \(train/a/0\.png is damaged in its zip"):
        load_dataset("folder", root=root)


def test_roots_that_are_not_image_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    with pytest.raises(DataError, match=r"neither a folder nor a zip; pass --data\.root of a folder with one"):
        load_dataset("folder", root=tmp_path / "file")
    (tmp_path / "damaged.zip").write_bytes(b"PK hello")
    with pytest.raises(DataError, match="is not a readable zip"):
        load_dataset("folder", root=tmp_path / "damaged.zip")
    with pytest.raises(DataError, match=r"no such file or folder: .*; check --data\.root"):
        load_dataset("folder", root=tmp_path / "missing")
    with pytest.raises(DataError, match=r"have no default location; pass --data\.root"):
        load_dataset("folder")


@pytest.mark.parametrize("name", ["folder", "cifar10", "cifar100", "idx"])
@pytest.mark.parametrize("kind", ["pipe", "device", "pipe in a link"])
def test_root_that_is_a_pipe_or_a_device_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    root = tmp_path / "root"
    if kind == "device":
        root.symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / "pipe")
        root.symlink_to(tmp_path / "pipe")
        root = root if kind == "pipe in a link" else tmp_path / "pipe"
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("reads without end"))
    signal.alarm(10)
    try:
        with pytest.raises(DataError, match=r"(is neither a folder nor a zip|^no .* files in .*); |pass --data\.root"):
            load_dataset(name, root=root)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
