"""The group-Fourier basis: irreps computed from the Cayley table, and dense layers, which become block diagonal."""

from quarterturn.fourier.irreps import products as products
from quarterturn.fourier.linear import group_linear as group_linear
from quarterturn.fourier.linear import group_pointwise as group_pointwise
from quarterturn.fourier.linear import weight_blocks as weight_blocks
