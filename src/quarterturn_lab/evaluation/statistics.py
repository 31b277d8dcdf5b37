"""Means, paired tests and intervals over seeds."""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; None for a single value."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def sign_flip_test(differences: Sequence[float]) -> float:
    """The two-sided p-value of paired differences by an exact sign-flip (permutation) test.

    >>> sign_flip_test([1.0, 2.0, 3.0])
    0.25
    """
    observed = abs(sum(differences))
    if len(differences) > 16:  # too many to enumerate: sample them with a fixed seed
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (65536, len(differences)))
    else:
        signs = np.array(list(product((-1.0, 1.0), repeat=len(differences))))
    return float((np.abs(signs @ np.array(differences)) >= observed - 1e-12 * max(observed, 1.0)).mean())


def paired_t_test(differences: Sequence[float]) -> float | None:
    """The two-sided p-value of a paired t-test; None for fewer than two pairs.

    >>> round(paired_t_test([1.0, 2.0, 3.0]), 4)
    0.0742
    """
    mean, sd = mean_sd(differences)
    if sd is None:
        return None
    if sd == 0:
        return 0.0 if mean else 1.0
    return two_tails(abs(mean) / (sd / math.sqrt(len(differences))), len(differences) - 1)


def two_tails(t: float, freedom: int) -> float:
    """The two-sided tail probability of Student's t."""
    return float(2 * stdtr(freedom, -abs(t)))


def t_quantile(freedom: int, level: float = 0.95) -> float:
    """The two-sided critical value of Student's t at this confidence level.

    >>> round(t_quantile(4), 3)
    2.776
    """
    return float(stdtrit(freedom, (1 + level) / 2))


def paired_interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """The confidence interval of the mean of paired differences; None for fewer than two pairs.

    >>> low, high = paired_interval([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    mean, sd = mean_sd(differences)
    if sd is None:
        return None
    reach = t_quantile(len(differences) - 1, level) * sd / math.sqrt(len(differences))
    return mean - reach, mean + reach
