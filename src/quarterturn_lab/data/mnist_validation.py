"""The training images of rotated MNIST, a sixth of them held out for choosing a network; no test images."""

from dataclasses import replace

from quarterturn_lab.data import mnist
from quarterturn_lab.data.dataset import Dataset, Settings


def load(settings: Settings) -> Dataset:
    """Rotated MNIST with 10,000 training images, and the other 2,000 in place of the test images."""
    data = mnist.load(settings)
    kept = len(data.train) * 5 // 6
    return replace(data, train=data.train[:kept], test=data.train[kept:])
