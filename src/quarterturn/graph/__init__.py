"""The graphs of networks: what `convert` and `to_plain` share."""
