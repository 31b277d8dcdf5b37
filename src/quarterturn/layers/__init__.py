"""The layers: the four operations, convolutions, dense layers, pooling, up-sampling and norms, for both layouts."""
