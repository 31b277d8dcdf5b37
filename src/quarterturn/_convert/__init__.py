"""Networks of torch, made equivariant: `convert`, and `summary` of what that costs."""

from quarterturn._convert.converted_network import Converted as Converted
from quarterturn._convert.converted_network import convert as convert
from quarterturn._convert.summary import summary as summary
