"""Existing networks in: see `build.convert`."""

from quarterturn.converting.build import Converted as Converted
from quarterturn.converting.build import convert as convert
from quarterturn.converting.summary import summary as summary
