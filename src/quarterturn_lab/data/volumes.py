"""Reads and writes volumes: NIfTI (.nii, .nii.gz), and TIFF files with slices (OME-TIFF, ImageJ).

NIfTI volumes are read with their axes from left to right, from back to front and from bottom to top of the patient,
whatever the order in the file; masks are written as their image lies. TIFF stacks keep slices, rows, columns.

Sizes are checked before anything is decoded. Nothing here needs torch.
"""

import gzip
import io
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import images, numeric_files
from quarterturn_lab.data.numeric_files import BYTES, TIFF, Missing, opened_tiff, quiet
from quarterturn_lab.errors import ConfigError, DataError

NIFTI = (".nii", ".nii.gz")
STACKS = (".tif", ".tiff")
HEADER = 544  # bytes: the larger of NIfTI's two headers, and four that say whether more follows
OFFSET = 1 << 20  # bytes at most between the header and the voxels
CLOSE = 1e-3  # mm by which the corners of an image and its labels may differ
TAILS = (0.5, 99.5)  # percentiles of a volume's values that are kept: MR volumes have a few very bright voxels
MILLIMETRES = {"nm": 1e-6, "µm": 1e-3, "um": 1e-3, "micron": 1e-3, "mm": 1.0, "cm": 10.0, "m": 1e3}


@dataclass(frozen=True)
class Header:
    """What a file says about its volume before it is decoded, in the order of axes that it is read in."""

    sizes: tuple[int, ...]
    channels: int
    spacing: tuple[float, ...]  # in mm; empty if the file does not say it
    affine: NDArray[np.float64] | None  # from indices to mm; None if the file does not say which way it lies
    dtype: np.dtype[Any]

    @property
    def lies(self) -> bool:
        """Whether the file says which way the volume lies."""
        return self.affine is not None


def stem(name: str) -> str:
    """The name without what says that it is a volume.

    >>> stem("a/b.nii.gz"), stem("c.ome.tif"), stem("d.e")
    ('a/b', 'c', 'd.e')
    """
    for suffix in (*NIFTI[::-1], ".ome.tif", ".ome.tiff", *STACKS):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name


def is_nifti(path: Path) -> bool:
    return path.name.lower().endswith(NIFTI)


def is_stack(path: Path) -> bool:
    """Whether a file is a TIFF with slices."""
    if path.suffix.lower() not in TIFF or images.fault_of(path):
        return False
    try:
        with quiet(), opened_tiff(path) as file:
            series = file.series[0]
            return bool(dict(zip(series.axes, series.shape, strict=True)).get("Z", 1) > 1)
    except Exception:  # each kind of damage has its own error; readers say what it is
        return False


def is_volume(path: Path) -> bool:
    """Whether a file is a volume, by its name or, for TIFF, by its axes."""
    return is_nifti(path) or is_stack(path)


def header(path: Path, limit: int) -> Header:
    """The header of a volume of at most so many voxels."""
    return _guarded(path, lambda: _nifti_header(path, limit)[0] if is_nifti(path) else _stack_header(path, limit))


def read(path: Path, channels: int, limit: int) -> NDArray[np.float32]:
    """A volume `(channels, *sizes)`, each channel in units of its own mean and deviation.

    Its extreme values are cut first. Four axes are a volume of several channels, if so many are asked for.
    """
    values = _guarded(path, lambda: _values(path, limit)[0])
    if len(values) != channels:
        raise DataError(several(path, len(values)))
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        voxels = "1 voxel that is" if count == 1 else f"{count:,} voxels that are"
        raise DataError(f"{path} has {voxels} not finite (NaN or infinite): replace them first")
    return np.stack([standardised(channel) for channel in values.astype(np.float32)])


def standardised(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """
    >>> standardised(np.array([1.0, 3.0], dtype=np.float32)).round(2).tolist()
    [-1.0, 1.0]
    """
    low, high = np.percentile(values, TAILS)
    kept = values.clip(low, high)
    deviation = float(kept.std(dtype=np.float64))
    return ((kept - kept.mean(dtype=np.float64)) / (deviation or 1.0)).astype(np.float32)


def labels(path: Path, limit: int) -> NDArray[np.int64]:
    """The whole numbers of a label volume, `(*sizes)`."""
    values = _guarded(path, lambda: _values(path, limit)[0])
    if len(values) != 1:
        raise DataError(f"{path} has {len(values)} channels: a label volume has one number for each voxel")
    if not np.isfinite(values).all() or not np.array_equal(values, values.round()):
        raise DataError(f"{path} has values that are not whole numbers: a label volume has the number of a class")
    return values[0].astype(np.int64)


def spacing(path: Path, given: tuple[float, ...], limit: int) -> tuple[float, ...]:
    """The size of a voxel along each axis in mm: what the file says, or else what is given."""
    if given and (len(given) != 3 or not all(np.isfinite(size) and size > 0 for size in given)):
        words = " ".join(f"--spacing {size:g}" for size in given)
        raise ConfigError(f"{words}: give the size of a voxel along each of three axes, in mm and above 0")
    found = header(path, limit).spacing or given
    if len(found) != 3 or not all(np.isfinite(size) and size > 0 for size in found):
        raise DataError(
            f"{path} does not say how large its voxels are: give it in mm, such as --spacing 1 --spacing 1 --spacing 3"
        )
    return found


def check_pair(path: Path, image: Header, label_path: Path, label: Header) -> None:
    """Raise if a label volume is not where its image is."""
    sizes = " and ".join(" x ".join(map(str, each.sizes)) for each in (image, label))
    if image.sizes != label.sizes:
        raise DataError(f"{path} and its labels {label_path.name} differ in size, {sizes}: resample the labels")
    if image.affine is None or label.affine is None:
        return
    corners = np.array([[0, 0, 0, 1], [*image.sizes, 1]], dtype=np.float64).T
    gap = float(np.abs(image.affine @ corners - label.affine @ corners).max())
    if gap > CLOSE * max(1.0, *image.spacing):
        raise DataError(
            f"{path} and its labels {label_path.name} lie differently in space (affines differ by up to {gap:.3g} mm): "
            "resample the labels to the image, or copy its header if only that is wrong"
        )


def several(path: Path, count: int) -> str:
    """What to do with a file of four axes."""
    return (
        f"{path} has {count} volumes in one file: if they are channels, name them in dataset.json "
        f'("channel_names": {{"0": "T1", ...}}, {count} of them); if they are times, save the one to use as a file'
    )


# --- both kinds -------------------------------------------------------------------------------------------------------


def _guarded(path: Path, act: Any) -> Any:
    if fault := images.fault_of(path):
        raise DataError(f"{path} {fault}")
    try:
        with quiet():
            return act()
    except Missing as error:
        raise DataError(f"{path} needs {error}") from None
    except DataError:
        raise
    except Exception as error:  # each package has its own error classes
        why = " ".join(str(error).split())[:200]
        raise DataError(f"{path} cannot be read ({why}): it is damaged, truncated or not a volume") from None


def _check_size(path: Path, sizes: tuple[int, ...], channels: int, limit: int) -> None:
    words = " x ".join(map(str, sizes))
    if min(sizes) < 1:
        raise DataError(f"{path} says that it has {words} voxels: it is damaged")
    if int(np.prod(sizes, dtype=np.float64)) * channels > limit:
        what = f"{channels} channels of {words}" if channels > 1 else words
        raise DataError(f"{path} has {what} voxels, more than the limit of {limit:,}: crop it, or raise --max-pixels")


def _values(path: Path, limit: int) -> tuple[NDArray[Any], Any]:
    """Values `(channels, *sizes)` in the reading order, and what is needed to write a mask beside them."""
    if not is_nifti(path):
        found = _stack_header(path, limit)
        with opened_tiff(path) as file:
            series = file.series[0]
            if series.nbytes > path.stat().st_size * (
                8 if int(series.keyframe.compression) == 1 else numeric_files.DENSEST
            ):
                raise ValueError(f"it is too short for {series.nbytes:,} bytes of voxels")
            array, axes = series.asarray(), series.axes
        order = [axes.index(axis) for axis in axes if axis not in "ZYX"] + [axes.index(axis) for axis in "ZYX"]
        return array.transpose(order).reshape(found.channels, *found.sizes), found
    import nibabel

    found, content, kind = _nifti_header(path, limit, whole=True)
    image = kind.from_bytes(content)
    turned = nibabel.as_closest_canonical(image) if found.lies else image
    values = np.asanyarray(turned.dataobj).reshape(*found.sizes, found.channels)
    return np.moveaxis(values, 3, 0), image


# --- NIfTI ------------------------------------------------------------------------------------------------------------


def _nifti_header(path: Path, limit: int, whole: bool = False) -> tuple[Header, bytes, Any]:
    """The header, the unpacked content if it is wanted, and nibabel's class for it.

    Of a packed file no more is unpacked than its header says that there is.
    """
    try:
        import nibabel
    except ImportError:
        raise Missing("nibabel", "nifti") from None
    logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)  # what a header lacks is said below
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as content:
        start = content.read(HEADER)
        kind = nibabel.Nifti2Image if start[:4] in (b"\x1c\x02\x00\x00", b"\x00\x00\x02\x1c") else nibabel.Nifti1Image
        if len(start) < kind.header_class.sizeof_hdr:
            raise DataError(f"{path} has no NIfTI header, it has {len(start)} bytes: copy the file again")
        found = kind.header_class.from_fileobj(io.BytesIO(start), check=False)
        if bytes(found["magic"])[:2] not in (b"n+", b"ni"):
            raise DataError(f"{path} has no NIfTI header: save the volume as NIfTI again, with nibabel or ITK-SNAP")
        if bytes(found["magic"])[:2] == b"ni":
            raise DataError(f"{path} is a header whose voxels are in another file: save both as one .nii.gz")
        shape = tuple(int(length) for length in found.get_data_shape())
        while len(shape) > 3 and shape[-1] == 1:
            shape = shape[:-1]
        if len(shape) not in (3, 4):
            words = " x ".join(map(str, shape))
            raise DataError(f"{path} has an array of {words}: a volume has 3 axes, or 4 with channels")
        channels = shape[3] if len(shape) == 4 else 1
        _check_size(path, shape[:3], channels, limit)
        dtype = found.get_data_dtype()
        if dtype.kind not in "iuf":
            raise DataError(f"{path} has values of type {dtype}: save it with one number for each voxel")
        size, offset = int(np.prod(shape)) * dtype.itemsize, int(found["vox_offset"])
        if not 0 <= offset <= OFFSET:
            raise DataError(f"{path} says that its voxels begin at byte {offset:,}: it is damaged")
        rest = b""
        if whole:
            wanted = min(size + offset, BYTES * limit + OFFSET)
            rest = content.read(max(0, wanted - len(start)))
            if len(start) + len(rest) < size + offset:
                raise DataError(
                    f"{path} ends after {len(start) + len(rest):,} of {size + offset:,} bytes: copy it again"
                )
    zooms = tuple(float(zoom) for zoom in np.abs(found["pixdim"][1:4]))
    known = all(np.isfinite(zoom) and zoom > 0 for zoom in zooms)
    affine = found.get_best_affine() if known and (found["sform_code"] or found["qform_code"]) else None
    sizes = shape[:3]
    if affine is not None:
        if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-9:
            raise DataError(f"{path} has an affine that is no place in space: write its header again")
        way = nibabel.io_orientation(affine)
        sizes = tuple(shape[i] for i in way[:, 0].argsort())
        affine = affine @ nibabel.orientations.inv_ornt_aff(way, shape[:3])
        zooms = tuple(float(zoom) for zoom in np.sqrt((affine[:3, :3] ** 2).sum(axis=0)))  # pixdim may differ
    return Header(sizes, channels, zooms if known else (), affine, dtype), start + rest, kind


def save_like(path: Path, mask: NDArray[Any], scan: Path, limit: int) -> None:
    """Write a mask in the reading order to a file, with the place in space of its scan and as that lies."""
    if is_nifti(path) and is_nifti(scan):
        import nibabel

        found, image = header(scan, limit), _values(scan, limit)[1]
        if found.lies:
            way = nibabel.orientations.ornt_transform(
                nibabel.orientations.axcodes2ornt("RAS"), nibabel.io_orientation(image.affine)
            )
            mask = nibabel.orientations.apply_orientation(mask, way)
        about = image.header.copy()
        about.set_data_dtype(mask.dtype)
        about.set_data_shape(mask.shape)
        about["scl_slope"], about["scl_inter"], about["cal_min"], about["cal_max"] = 1, 0, 0, 0
        nibabel.save(type(image)(np.ascontiguousarray(mask), image.affine if found.lies else None, about), path)
        return
    import tifffile

    spacing = header(scan, limit).spacing or (1.0, 1.0, 1.0)
    about_stack: dict[str, Any] = {"axes": "ZYX"}
    for axis, size in zip("ZYX", spacing, strict=True):
        about_stack |= {f"PhysicalSize{axis}": size, f"PhysicalSize{axis}Unit": "mm"}
    tifffile.imwrite(path, mask, ome=True, metadata=about_stack, compression="zlib")


# --- TIFF stacks ------------------------------------------------------------------------------------------------------


def _stack_header(path: Path, limit: int) -> Header:
    if path.suffix.lower() not in TIFF:
        raise DataError(f"{path} is no volume: give NIfTI (.nii, .nii.gz), or a TIFF stack with an axis Z")
    with opened_tiff(path) as file:
        series = file.series[0]
        lengths = dict(zip(series.axes, series.shape, strict=True))
        if lengths.get("Z", 1) < 2:
            raise DataError(f"{path} has no slices: a volume is a stack, with an axis Z in its OME or ImageJ metadata")
        if lengths.get("T", 1) > 1:
            raise DataError(f"{path} has {lengths['T']} times: save the one to use as a file")
        channels = int(np.prod([n for axis, n in lengths.items() if axis not in "ZYX"]))
        sizes = (lengths["Z"], lengths["Y"], lengths["X"])
        _check_size(path, sizes, channels, limit)
        return Header(sizes, channels, _stack_spacing(file), None, series.dtype)


def _stack_spacing(file: Any) -> tuple[float, ...]:
    """The spacing of slices, rows and columns in mm, if OME or ImageJ metadata have it."""
    if file.is_ome:
        import xml.etree.ElementTree as tree

        for element in tree.fromstring(file.ome_metadata).iter():
            if element.tag.endswith("}Pixels"):
                found = [
                    float(element.get(f"PhysicalSize{axis}", 0))
                    * MILLIMETRES.get(element.get(f"PhysicalSize{axis}Unit", "µm"), 0)
                    for axis in "ZYX"
                ]
                return tuple(found) if all(np.isfinite(size) and size > 0 for size in found) else ()
    about = file.imagej_metadata or {}
    resolution = file.pages.first.tags.get("YResolution")
    factor = MILLIMETRES.get(str(about.get("unit", "")).replace("\\u00B5", "µ"), 0)
    if not about.get("spacing") or resolution is None or not factor or not all(resolution.value):
        return ()
    side = resolution.value[1] / resolution.value[0] * factor
    return (float(about["spacing"]) * factor, side, side)
