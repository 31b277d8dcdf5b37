"""Seeds for everything random, each from the names of what it is for."""

import hashlib


def key(*parts: object) -> int:
    """A random seed of 63 bits from anything that can be written down.

    >>> key(0, "conv1.weight") == key(0, "conv1.weight") != key(1, "conv1.weight")
    True
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
