"""Convolutional networks that are exactly equivariant to turns and flips of their input."""

from quarterturn.check import EquivarianceErrors as EquivarianceErrors
from quarterturn.check import assert_equivariant as assert_equivariant
from quarterturn.check import equivariance_error as equivariance_error
from quarterturn.errors import GroupError as GroupError
from quarterturn.errors import NotEquivariantError as NotEquivariantError
from quarterturn.errors import OptionError as OptionError
from quarterturn.errors import QuarterturnError as QuarterturnError
from quarterturn.errors import ShapeError as ShapeError
from quarterturn.groups import C2 as C2
from quarterturn.groups import C4 as C4
from quarterturn.groups import D4 as D4
from quarterturn.groups import FLIP as FLIP
from quarterturn.groups import GROUPS as GROUPS
from quarterturn.groups import MIRROR as MIRROR
from quarterturn.groups import OCTA as OCTA
from quarterturn.groups import OCTA_FULL as OCTA_FULL
from quarterturn.groups import Group as Group
from quarterturn.groups import compose as compose
from quarterturn.groups import generate as generate
from quarterturn.groups import named as named
from quarterturn.layers import Pool as Pool
from quarterturn.layers import Roll as Roll
from quarterturn.layers import Slice as Slice
from quarterturn.layers import Stack as Stack
from quarterturn.layers import Unstack as Unstack
from quarterturn.ops import act as act
from quarterturn.ops import pool as pool
from quarterturn.ops import roll as roll
from quarterturn.ops import slice as slice
from quarterturn.ops import stack as stack
from quarterturn.ops import unstack as unstack

__version__ = "0.1.0"
