"""The compiled kernel: group convolutions in the group-Fourier basis, and slice, stack and roll, on the CPU."""

from quarterturn.kernel.library import kernels as kernels
from quarterturn.kernel.moves import carry_out as carry_out
from quarterturn.kernel.moves import suits_moves as suits_moves
from quarterturn.kernel.operators import group_conv as group_conv
from quarterturn.kernel.operators import is_available as is_available
from quarterturn.kernel.plan import misplaced as misplaced
from quarterturn.kernel.select import faster as faster
from quarterturn.kernel.select import faster_dense as faster_dense
from quarterturn.kernel.select import faster_in as faster_in
