"""Looking at a data folder: what it holds, and whether every image can be read."""

from collections import Counter
from pathlib import Path

from PIL import Image

from quarterturn_lab.data import folder as class_folders
from quarterturn_lab.data import images, mnist, plankton, splits
from quarterturn_lab.data.dataset import Settings
from quarterturn_lab.errors import DataError


def info(folder: Path) -> None:
    """Print the kind of the folder, its classes, images, sizes and modes."""
    if _is_mnist(folder):
        for path in _idx_files(folder):
            print(f"{path}: {' x '.join(map(str, mnist.read_idx(path).shape))}")
        return
    root, found = _images(folder)
    counts = Counter(name.split("/")[0] for name, _ in found)
    sizes, modes, bad = [], Counter[str](), 0
    for _, path in found:
        try:
            with Image.open(path) as image:
                sizes.append(image.size)
                modes[image.mode] += 1
        except OSError:
            bad += 1
    print(f"{root}: {len(found):,} images in {len(counts)} classes")
    if sizes:
        print(f"longest sides: {min(map(max, sizes))} to {max(map(max, sizes))} pixels; modes: {dict(modes)}")
    if bad:
        print(f"{bad} cannot be opened: `quarterturn data verify {folder}` names them")
    names = [name for name, _ in found]
    if len(names) == plankton.LISTED_FOR and splits.committed(plankton.LISTED) <= set(names):
        print(f"these are the {plankton.LISTED_FOR:,} plankton images whose test part is listed in the repository")
    for name, count in counts.most_common(5):
        print(f"{count:8,}  {name}")
    if len(counts) > 5:
        name, count = min(counts.items(), key=lambda item: item[1])
        print(f"     ...\n{count:8,}  {name}")


def verify(folder: Path, max_pixels: int) -> bool:
    """Decode everything; print the names of what is bad."""
    if _is_mnist(folder):
        shapes = {path.name: mnist.read_idx(path).shape for path in _idx_files(folder)}
        print(f"{len(shapes)} idx files are whole")
        return True
    root, found = _images(folder)
    settings = Settings(str(folder), side=32, channels=3, max_pixels=max_pixels)
    bad = 0
    for _, path in found:
        try:
            images.read(path, settings)
        except DataError as error:
            bad += 1
            print(f"bad: {error}")
    print(f"{len(found) - bad:,} of {len(found):,} images in {root} can be read")
    return not bad


def _images(folder: Path) -> tuple[Path, list[tuple[str, Path]]]:
    root = plankton.inside(class_folders.existing(str(folder), class_folders.TREE))
    return root, class_folders.files_in(root, class_folders.TREE.format(folder=folder))


def _idx_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*-ubyte*")) or sorted((folder / "mnist").glob("*-ubyte*"))


def _is_mnist(folder: Path) -> bool:
    return bool(_idx_files(folder))
