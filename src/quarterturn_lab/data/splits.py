"""The split into training and test images: it depends only on names, so it is reproducible."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data.dataset import Data, Indices
from quarterturn_lab.errors import ConfigError, DataError

# As in the paper: 3,037 of 30,336 images.
TEST_PART = 3037 / 30336


def stratified(names: Sequence[str], labels: NDArray[np.int64], part: float = TEST_PART) -> NDArray[np.bool_]:
    """True for test images: the same fraction of each class, those whose names have the smallest SHA-256.

    Class counts are rounded by largest remainder, so that the total is exact: 3,037 of 30,336.
    """
    counts = np.bincount(labels)
    exact = counts * part
    shares = np.floor(exact).astype(int)
    for label in np.argsort(-(exact - shares), kind="stable")[: round(len(names) * part) - shares.sum()]:
        shares[label] += 1
    ranked = sorted(range(len(names)), key=lambda i: hashlib.sha256(f"test part 1/{names[i]}".encode()).digest())
    test = np.zeros(len(names), dtype=bool)
    for i in ranked:
        if shares[labels[i]] > 0:
            shares[labels[i]] -= 1
            test[i] = True
    return test


def with_validation(data: Data, part: float) -> Data:
    """The data with a fraction of the training images held out for validation, by the same rule as test images."""
    if not part:
        return data
    if len(data.valid):
        raise ConfigError(f"these data have {len(data.valid)} validation images of their own: leave --validation out")
    labels = data.labels[data.train] if data.task == "classes" else np.zeros(len(data.train), dtype=np.int64)  # type: ignore[index]
    held_out = stratified([data.names[i] for i in data.train], labels, part)
    if not held_out.any() or held_out.all():
        raise ConfigError(f"--validation {part} of {len(data.train)} training images leaves one part empty")
    return replace(data, train=data.train[~held_out], valid=data.train[held_out])


def committed(name: str) -> set[str]:
    """The image names of a committed split file, which has lines `class: stem stem ...`."""
    lines = (files(__package__) / "committed_splits" / name).read_text().splitlines()
    found: set[str] = set()
    for line in lines:
        folder, _, stems = line.partition(": ")
        found.update(f"{folder}/{stem}.jpg" for stem in stems.split())
    return found


def written(names: Sequence[str]) -> str:
    """The text of a split file."""
    by_class: dict[str, list[str]] = {}
    for name in sorted(names):
        folder, _, file = name.partition("/")
        by_class.setdefault(folder, []).append(file.removesuffix(".jpg"))
    return "".join(f"{folder}: {' '.join(stems)}\n" for folder, stems in sorted(by_class.items()))


# --- the user's own images --------------------------------------------------------------------------------------------

PART = 0.15  # of the images for the test, and for validation


def three_parts(
    names: Sequence[str],
    strata: Sequence[object],
    group: dict[str, str],
    given: dict[str, str],
    test_part: float | None = None,
    valid_part: float = 0.0,
) -> dict[str, Indices]:
    """Indices for train, valid and test: the user's own parts, and what is missing by the rule.

    The rule: in each stratum (class), specimens in the order of the SHA-256 of their names go to the test until its
    part is reached, then to validation. A stratum of three or more specimens has some in every part. An image without a
    specimen of its own (`group`) is one.
    """
    part = dict(given)
    for what, share, asked in (("test", test_part or PART, test_part), ("valid", valid_part or PART, valid_part)):
        if what in given.values():
            if asked:
                option = {"test": "--test-part", "valid": "--validation"}[what]
                count = sum(value == what for value in given.values())
                raise ConfigError(
                    f"these images have a part for this of their own ({count} images): leave {option} out"
                )
            continue
        free = [i for i, name in enumerate(names) if part.get(name, "train") == "train"]
        share *= len(names) / max(1, len(free)) if not given else 1.0  # of all images
        for i in _chosen([names[i] for i in free], [strata[i] for i in free], group, share, what == "test"):
            part[names[free[i]]] = what
    _check_groups(group, part)
    found = {
        what: np.array([i for i, name in enumerate(names) if part.get(name, "train") == what], dtype=np.int64)
        for what in ("train", "valid", "test")
    }
    for what, indices in found.items():
        if not len(indices):
            kind = "specimens" if group else "files"
            few = "1 file leaves" if len(names) == 1 else f"{len(names)} files leave"
            raise DataError(f"{few} no {what} part: give more {kind}, at least 3 of each class")
    return found


def _chosen(
    names: Sequence[str], strata: Sequence[object], group: dict[str, str], share: float, more_to_come: bool
) -> list[int]:
    """The images of the specimens that are held out, by stratum: about this share of its images."""
    members: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        members.setdefault(group.get(name, name), []).append(i)
    totals = Counter(strata)
    stratum_of = {
        key: min((strata[i] for i in inside), key=lambda s: (totals[s], str(s))) for key, inside in members.items()
    }
    by_stratum: dict[object, list[str]] = {}
    for key in sorted(members, key=lambda key: hashlib.sha256(f"test part 1/{key}".encode()).digest()):
        by_stratum.setdefault(stratum_of[key], []).append(key)
    chosen: list[str] = []
    for keys in by_stratum.values():
        wanted = share * sum(len(members[key]) for key in keys)
        most = len(keys) - (2 if more_to_come and len(keys) > 2 else 1)  # the others train, and validate
        taken: list[str] = []
        reached = 0
        for key in keys:
            nearer = abs(reached + len(members[key]) - wanted) < abs(reached - wanted)
            if nearer and len(taken) < most:
                taken.append(key)
                reached += len(members[key])
        chosen += taken or sorted(keys, key=lambda key: len(members[key]))[: min(1, most)]
    return [i for key in chosen for i in members[key]]


def _check_groups(group: dict[str, str], part: dict[str, str]) -> None:
    """Raise if the user's own parts separate images of one specimen."""
    seen: dict[str, tuple[str, str]] = {}
    for name, key in group.items():
        here = part.get(name, "train")
        first, where = seen.setdefault(key, (name, here))
        if where != here:
            raise DataError(
                f"the specimen {key} is in two parts, {first} ({where}) and {name} ({here}): move its images together, "
                "or leave --groups-by out"
            )


def copies(data: Data) -> list[str]:
    """The names of test images whose pixels are those of a training image."""

    def pixels(i: int) -> tuple[tuple[int, ...], bytes]:
        return data.images[i].shape, hashlib.sha256(data.images[i].tobytes()).digest()

    known = {pixels(i) for i in data.train}
    return [data.names[i] for i in data.test if pixels(i) in known]
