"""The graphs of networks: what `convert` and `to_plain` share.

`capture` reads the graph of a network, and `rewrite` goes over it once with a rewriter, which has a rule for each layer
and function. `pointwise`, `torch_functions` and `in_place` say what torch's functions are and do.
"""
