"""Existing networks in: see `build.convert`."""

from quarterturn.convert.build import Converted as Converted
from quarterturn.convert.build import convert as convert
from quarterturn.convert.summary import summary as summary
