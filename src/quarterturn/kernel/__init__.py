"""The compiled kernel: group convolutions in the group-Fourier basis, and slice, stack and roll, on the CPU."""

from quarterturn.kernel.finish import Finish as Finish
from quarterturn.kernel.library import kernels as kernels
from quarterturn.kernel.moves import carry_out as carry_out
from quarterturn.kernel.moves import suits_moves as suits_moves
from quarterturn.kernel.operators import finish_in_place as finish_in_place
from quarterturn.kernel.operators import group_conv as group_conv
from quarterturn.kernel.plan import misplaced as misplaced
from quarterturn.kernel.select import blocks_do_not_gain as blocks_do_not_gain
from quarterturn.kernel.select import cannot_run as cannot_run
from quarterturn.kernel.select import cannot_take as cannot_take
from quarterturn.kernel.select import is_available as is_available
from quarterturn.kernel.select import outside_transforms as outside_transforms
from quarterturn.kernel.select import too_narrow as too_narrow
from quarterturn.kernel.volumes import volume_conv as volume_conv
from quarterturn.kernel.watch import dispatch_modes as dispatch_modes
from quarterturn.kernel.watch import watched as watched
