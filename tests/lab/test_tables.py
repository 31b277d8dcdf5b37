"""Tables of labels: every form from a small folder, and every mistake by its message."""

from pathlib import Path

import numpy as np
import pytest
from labtools import galaxy_tree
from PIL import Image
from test_own_images import agree, own

from quarterturn_lab.data.look import look
from quarterturn_lab.data.own_images import load
from quarterturn_lab.errors import ConfigError, DataError


def pictures(root: Path, count: int = 24, where: str = "photos") -> Path:
    """Images 0.png, 1.png, ... whose grey is their number."""
    (root / where).mkdir(parents=True)
    for i in range(count):
        Image.new("L", (8, 9), i).save(root / where / f"{i}.png")
    return root


def table(root: Path, header: str, row: object, count: int = 24, name: str = "labels.csv") -> Path:
    lines = [header, *(row(i) for i in range(count))]
    (root / name).write_text("\n".join(line for line in lines if line) + "\n")
    return root


def number(name: str) -> int:
    return int(Path(name).stem)


FILES = {
    "names": lambda i: f"{i}.png",
    "names without extension": str,
    "paths": lambda i: f"photos/{i}.png",
    "paths on another machine": lambda i: f"/home/me/data/photos/{i}.png",
    "paths of Windows": lambda i: f"C:\\data\\photos\\{i}.png",
}


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_classes_in_a_column_of_text(form: str, delimiter: str, tmp_path: Path) -> None:
    file = FILES[form]
    root = table(pictures(tmp_path), f"species{delimiter}picture", lambda i: f"{'ab'[i % 2]} b{delimiter}{file(i)}")
    data = agree(root)
    assert (data.task, data.classes) == ("classes", ("a b", "b b"))
    assert [data.labels[i] for i, name in enumerate(data.names)] == [number(name) % 2 for name in data.names]
    assert [int(data.images[i].max()) for i in range(24)] == [number(name) for name in data.names]


def test_a_table_without_a_header(tmp_path: Path) -> None:
    data = agree(table(pictures(tmp_path), "", lambda i: f"{i}.png,{'ab'[i % 2]}"))
    assert data.classes == ("a", "b")
    assert len(data.names) == 24


def test_a_few_whole_numbers_are_classes_and_may_be_numbers(tmp_path: Path) -> None:
    root = table(pictures(tmp_path, 36), "id,grade", lambda i: f"{i},{i % 12}", 36)
    data = agree(root)
    assert data.classes == tuple(map(str, range(12)))  # 2 before 10
    other = agree(root, task="numbers")
    assert other.task == "numbers"
    assert other.units is not None
    assert np.allclose(other.units(other.labels)[:, 0], [number(name) % 12 for name in other.names], atol=1e-5)


def test_numbers_come_back_in_their_units(tmp_path: Path) -> None:
    data = agree(table(pictures(tmp_path), "id;length_um;depth", lambda i: f"{i};{i},5;{-1000 * i}"))  # decimal commas
    assert (data.task, data.classes) == ("numbers", ("length_um", "depth"))
    assert np.allclose(data.labels[data.train].mean(0), 0, atol=1e-6)
    assert np.allclose(data.labels[data.train].std(0), 1, atol=1e-6)
    assert data.units is not None
    truth = [[number(name) + 0.5, -1000 * number(name)] for name in data.names]
    assert np.allclose(data.units(data.labels), truth, atol=1e-2)


TAGS = {
    "columns": ("id,cilia,eggs", lambda i: f"{i},{i % 2},{int(i % 3 == 0)}"),
    "cells": ("id,tags", lambda i: f"{i},{';'.join(['cilia'] * (i % 2) + ['eggs'] * (i % 3 == 0))}"),
    "bars": ("id,found", lambda i: f"{i},{'|'.join(['cilia'] * (i % 2) + ['eggs'] * (i % 3 == 0) + ['x'])}"),
}


@pytest.mark.parametrize("form", TAGS)
def test_tags(form: str, tmp_path: Path) -> None:
    data = agree(table(pictures(tmp_path), *TAGS[form]))
    assert (data.task, data.classes[:2]) == ("tags", ("cilia", "eggs"))
    numbers = [number(name) for name in data.names]
    assert data.labels[:, :2].tolist() == [[i % 2, i % 3 == 0] for i in numbers]
    for part in (data.train, data.valid, data.test):
        assert data.labels[part][:, :2].any(0).all()  # each tag in each part


def test_several_rows_for_an_image(tmp_path: Path) -> None:
    rows = [f"{i}.png,{word}" for i in range(24) for word in ("ant", "bee", "cat")[: 1 + i % 3]]
    root = table(pictures(tmp_path), "file,seen", lambda i: rows[i], len(rows))
    with pytest.raises(DataError, match=r"labels\.csv, line 4: photos/1\.png appears again .*--task tags"):
        look(own(root))
    data = agree(root, task="tags")
    assert data.classes == ("ant", "bee", "cat")
    assert [int(row.sum()) for row in data.labels] == [1 + number(name) % 3 for name in data.names]


def test_columns_with_a_single_one_are_classes(tmp_path: Path) -> None:
    data = agree(table(pictures(tmp_path), "id,ant,bee,cat", lambda i: f"{i},{','.join('100100'[i % 3 :][:3])}"))
    assert (data.task, data.classes) == ("classes", ("ant", "bee", "cat"))
    assert set(data.labels) == {0, 1, 2}


def test_galaxies_need_no_experiment_of_their_own(tmp_path: Path) -> None:
    data = agree(galaxy_tree(tmp_path, side=40))
    assert data.task == "answers"
    assert data.labels.shape == (20, 37)
    assert data.images.shape[1] == 3


def test_parts_and_specimens_in_columns(tmp_path: Path) -> None:
    def row(i: int) -> str:
        return f"{i},{'ab'[i % 2]},{('train', 'train', 'val', 'Test')[i // 2 % 4]},fish {i // 3}"

    root = table(pictures(tmp_path), "id,label,split,fish", row)
    data = agree(root)
    assert data.classes == ("a", "b")
    assert {number(data.names[i]) // 2 % 4 for i in data.test} == {3}
    assert {number(data.names[i]) // 2 % 4 for i in data.valid} == {2}
    with pytest.raises(DataError, match=r"the specimen fish \d is in two parts, .* leave --groups-by out"):
        look(own(root, groups_by="fish"))
    other = table(pictures(tmp_path / "b"), "id,label,fish", lambda i: f"{i},{'ab'[i % 2]},fish {i // 3}")
    data = agree(other, groups_by="fish", columns=("label",))
    sides = [{number(data.names[i]) // 3 for i in part} for part in (data.train, data.valid, data.test)]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 8


def test_specimens_by_a_pattern_of_names(tmp_path: Path) -> None:
    root = table(pictures(tmp_path), "id,label", lambda i: f"{i},{'ab'[i % 2]}")
    data = agree(root, groups_by=r"(\d)\.png")  # the last digit
    sides = [{number(data.names[i]) % 10 for i in part} for part in (data.train, data.valid, data.test)]
    assert sum(map(len, sides)) == 10
    with pytest.raises(DataError, match="matches no name, such as photos/0.png"):
        look(own(root, groups_by="fish"))
    with pytest.raises(ConfigError, match="neither a column nor a regular expression"):
        look(own(root, groups_by="("))


def test_what_has_no_partner_is_named(tmp_path: Path) -> None:
    root = table(pictures(tmp_path), "id,label", lambda i: f"{i + 2},{'ab'[i % 2]}")
    found = look(own(root))
    assert set(found.bad) == {"24", "25"}
    assert any("photos/0.png, photos/1.png" in note for note in found.notes)
    assert found.images == 22
    with pytest.raises(DataError, match=r"24 of labels\.csv has no image in .*--skip-bad"):
        load(own(root))
    assert len(agree(root, skip_bad=True).names) == 22


def test_empty_cells_are_left_out(tmp_path: Path) -> None:
    found = look(own(table(pictures(tmp_path), "id,size", lambda i: f"{i},{i / 7 if i > 3 else 'NA'}")))
    assert found.images == 20
    assert any(note.startswith("4 images have no label") for note in found.notes)


MISTAKES = {
    "columns": ("id,a,b", lambda i: f"{i},{'xy'[i % 2]},{i % 2}", {}, "has the columns a, b: name those to learn"),
    "unknown column": ("id,length", lambda i: f"{i},{i}", {"columns": ("lenght",)}, "lenght.*length"),
    "nothing to learn": ("id,a", lambda i: f"{i},same", {}, "has no column to learn: id, a"),
    "short row": ("id,a", lambda i: f"{i},x" if i != 5 else "5", {}, "line 7: 1 column, but the first line has 2"),
    "short row named": ("id,a", lambda i: f"{i},x" if i != 5 else "5", {"labels": "labels.csv"}, "line 7: 1 column,"),
    "no number": ("id,a", lambda i: f"{i},{i if i != 3 else 'x'}", {"task": "numbers"}, "line 5, a: 'x' is not a num"),
    "no tag": ("id,a,b", lambda i: f"{i},{i},{i % 2}", {"task": "tags"}, "line 4, a: '2' is not 0 or 1"),
    "no mask": ("id,a", lambda i: f"{i},{i}", {"task": "pixels"}, "--task pixels is not for images with a table"),
    "no file": ("id,a", lambda i: f"{i},x", {"labels": "other.csv"}, "--labels other.csv: there is no such file"),
    "no names": ("id,a", lambda i: f"z{i},x", {"labels": "labels.csv"}, "no column of .* has names of the 24 images"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake: str, tmp_path: Path) -> None:
    header, row, options, message = MISTAKES[mistake]
    root = table(pictures(tmp_path), header, row)
    with pytest.raises((DataError, ConfigError), match=message):
        look(own(root, **options))


def test_folders_and_a_table_are_not_mixed_up(tmp_path: Path) -> None:
    root = pictures(pictures(tmp_path, where="day"), where="night")
    table(root, "file,label", lambda i: f"{'day' if i < 24 else 'night'}/{i % 24}.png,{'ab'[i % 2]}", 48)
    with pytest.raises(DataError, match="--labels folders or --labels labels.csv"):
        look(own(root))
    assert agree(root, labels="folders").classes == ("day", "night")
    assert agree(root, labels="labels.csv").classes == ("a", "b")
    (root / "labels.csv").write_text("file,label\n0.png,a\n1.png,b\n")
    with pytest.raises(DataError, match=r"'0\.png' of the table may be day/0\.png or night/0\.png"):
        look(own(root, labels="labels.csv"))


def test_two_tables_are_not_mixed_up(tmp_path: Path) -> None:
    root = table(pictures(tmp_path), "id,label", lambda i: f"{i},{'ab'[i % 2]}")
    table(root, "id,size", lambda i: f"{i},{i}", name="sizes.csv")
    (root / "readme.txt").write_text("These are photos.\n\nThey have tables.\n")
    with pytest.raises(DataError, match=r"labels\.csv and sizes\.csv have rows .*--labels"):
        look(own(root))
    assert agree(root, labels="sizes.csv").task == "numbers"


def test_a_table_with_images_in_the_folders_of_a_split(tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        pictures(tmp_path, 6, part)
    rows = [f"{part}/{i}.png,{i + 0.5}" for part in ("train", "val", "test") for i in range(6)]
    data = agree(table(tmp_path, "file,size", lambda i: rows[i], 18))
    assert {data.names[i].split("/")[0] for i in data.test} == {"test"}
    assert [len(part) for part in (data.train, data.valid, data.test)] == [6, 6, 6]


def test_a_table_in_each_folder_of_a_split(tmp_path: Path) -> None:
    for part in ("train", "test"):
        pictures(tmp_path, 12, part)
        table(tmp_path / part, "file_name,label", lambda i: f"{i}.png,{'ab'[i % 2]}", 12, "metadata.csv")
    data = agree(tmp_path)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [10, 2, 12]
    assert data.labels.tolist() == [number(name) % 2 for name in data.names]


def test_a_challenge_with_images_without_labels(tmp_path: Path) -> None:
    for part in ("train", "test"):
        pictures(tmp_path, 12, part)
    for i in range(12):
        (tmp_path / f"test/{i}.png").rename(tmp_path / f"test/t{i}.png")
    table(tmp_path, "id,label", lambda i: f"{i},{'ab'[i % 2]}", 12, "train.csv")
    table(tmp_path, "id,label", lambda i: f"t{i},a", 12, "sample_submission.csv")
    data = agree(tmp_path)
    assert len(data.names) == 12
    assert any(note.startswith("12 images have no label in train.csv") for note in look(own(tmp_path)).notes)


def test_one_specimen_may_have_several_classes(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        for i in range(12):
            Image.new("L", (8, 9), i).save(tmp_path / name / f"slide{i // 2}_{i}.png")
    data = agree(tmp_path, groups_by="^[^_]+")
    sides = [{data.names[i].split("/")[1].split("_")[0] for i in part} for part in (data.train, data.valid, data.test)]
    assert sum(map(len, sides)) == 6  # not once for each class
