"""Group convolutions and dense layers in the group-Fourier basis, where they need fewer products than plain ones."""

from quarterturn.fourier.conv import group_conv as group_conv
from quarterturn.fourier.conv import is_available as is_available
from quarterturn.fourier.dense import group_linear as group_linear
from quarterturn.fourier.dense import group_pointwise as group_pointwise
from quarterturn.fourier.geometry import misplaced as misplaced
from quarterturn.fourier.irreps import products as products
from quarterturn.fourier.library import kernels as kernels
from quarterturn.fourier.moving import carry_out as carry_out
from quarterturn.fourier.moving import suits_moves as suits_moves
from quarterturn.fourier.rule import faster as faster
from quarterturn.fourier.rule import faster_dense as faster_dense
from quarterturn.fourier.rule import faster_in as faster_in
