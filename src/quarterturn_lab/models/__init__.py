"""Modules from the specification of a network, and the networks for digits."""
