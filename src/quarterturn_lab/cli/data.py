"""The commands `data info` and `data verify`: what a folder holds, and whether every image can be read."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from quarterturn_lab.data import aerial, galaxies, image_mask_pairs, images, mnist, nuclei, plankton, splits
from quarterturn_lab.data import folders as class_folders
from quarterturn_lab.data.dataset import Settings
from quarterturn_lab.data.read_all import Files
from quarterturn_lab.errors import DataError


def info(folder: Path) -> None:
    """Print the number of images, their classes, sizes and modes."""
    if _is_mnist(folder):
        for path in _idx_files(folder):
            print(f"{path}: {' x '.join(map(str, mnist.read_idx(path).shape))}")
        return
    if _is_galaxies(folder):
        root = galaxies.inside(folder)
        answers, rows = galaxies.table(root / galaxies.TABLE)
        parts = " / ".join(f"{len(part):,}" for part in galaxies.split(len(rows)))
        print(f"{root}: {len(rows):,} galaxies with {len(answers)} answers; train / valid / test: {parts}")
        _sizes(folder, galaxies.paired(root / galaxies.IMAGES, rows, root / galaxies.TABLE, skip=False))
        return
    for name, found_pairs in _scenes(folder).items():
        count = len(found_pairs)
        print(f"{name}: {count:,} image{'s' if count != 1 else ''} with label maps")
        _sizes(folder, [(stem, path) for stem, path, _ in found_pairs])
    if _scenes(folder):
        return
    root, found = _images(folder)
    counts = Counter(name.split("/")[0] for name, _ in found)
    print(f"{root}: {len(found):,} images in {len(counts)} classes")
    _sizes(folder, found)
    names = [name for name, _ in found]
    if len(names) == plankton.LISTED_FOR and splits.committed(plankton.LISTED) <= set(names):
        print(f"these are the {plankton.LISTED_FOR:,} plankton images whose test set is listed in the repository")
    for name, count in counts.most_common(5):
        print(f"{count:8,}  {name}")
    if len(counts) > 5:
        name, count = min(counts.items(), key=lambda item: item[1])
        print(f"     ...\n{count:8,}  {name}")


def _sizes(folder: Path, files: Files) -> None:
    """Print sizes and modes, read from the file headers only."""
    sizes, modes, bad = [], Counter[str](), 0
    for _, path in files:
        try:
            with Image.open(path) as image:
                sizes.append(image.size)
                modes[image.mode] += 1
        except OSError:
            bad += 1
    if len(set(sizes)) == 1:
        print(f"all {sizes[0][0]} x {sizes[0][1]} pixels; modes: {dict(modes)}")
    elif sizes:
        print(f"longest sides: {min(map(max, sizes))} to {max(map(max, sizes))} pixels; modes: {dict(modes)}")
    if bad:
        print(f"{bad} cannot be opened as images: list them with `quarterturn data verify {folder}`")


def verify(folder: Path, max_pixels: int) -> bool:
    """Decode every image and print those that cannot be used; True if there are none."""
    if _is_mnist(folder):
        shapes = {path.name: mnist.read_idx(path).shape for path in _idx_files(folder)}
        print(f"{len(shapes)} idx files are complete")
        return True
    settings = Settings(folder=str(folder), side=32, channels=3, max_pixels=max_pixels)
    scenes = [(path, label) for found in _scenes(folder).values() for _, path, label in found]
    if scenes:
        labels, instances = dict(scenes), not (aerial.inside(folder) / "train" / "sat").is_dir()
        return _all_good(
            folder, list(labels), lambda path: image_mask_pairs.one(path, labels[path], settings, instances)
        )
    if _is_galaxies(folder):
        root = galaxies.inside(folder)
        _, rows = galaxies.table(root / galaxies.TABLE)
        files = galaxies.paired(root / galaxies.IMAGES, rows, root / galaxies.TABLE, skip=False)
    else:
        root, files = _images(folder)
    return _all_good(root, [path for _, path in files], lambda path: images.read(path, settings))


def _all_good(root: Path, paths: list[Path], read: Callable[[Path], object]) -> bool:
    bad = 0
    for path in paths:
        try:
            read(path)
        except DataError as error:
            bad += 1
            print(f"bad: {error}")
    print(f"{len(paths) - bad:,} of {len(paths):,} images in {root} can be used")
    return not bad


def _is_galaxies(folder: Path) -> bool:
    return (galaxies.inside(folder) / galaxies.TABLE).is_file()


def _scenes(folder: Path) -> dict[str, list[image_mask_pairs.Pair]]:
    """Images with their label maps, by part, in a folder of aerial images or nuclei; empty for other folders."""
    root, cells = aerial.inside(folder), nuclei.inside(folder)
    if (root / "train" / "sat").is_dir():
        parts = [part for part in aerial.PARTS if (root / part / "sat").is_dir()]
        return {
            part: image_mask_pairs.matched(root / part / "sat", root / part / "map", "", skip=False) for part in parts
        }
    if (cells / "images").is_dir() and (cells / "labels").is_dir():
        return {str(cells): image_mask_pairs.matched(cells / "images", cells / "labels", "", skip=False)}
    return {}


def _images(folder: Path) -> tuple[Path, list[tuple[str, Path]]]:
    root = plankton.inside(class_folders.existing(str(folder), class_folders.TREE))
    return root, class_folders.files_in(root, class_folders.TREE.format(folder=folder))


def _idx_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*-ubyte*")) or sorted((folder / "mnist").glob("*-ubyte*"))


def _is_mnist(folder: Path) -> bool:
    return bool(_idx_files(folder))
