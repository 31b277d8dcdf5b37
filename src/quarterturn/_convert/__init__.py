"""Existing networks in: see `build.convert`."""

from quarterturn._convert.build import Converted as Converted
from quarterturn._convert.build import convert as convert
from quarterturn._convert.summary import summary as summary
