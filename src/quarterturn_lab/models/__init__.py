"""Networks as torch modules: those built from a `Net`, and those for rotated MNIST."""
