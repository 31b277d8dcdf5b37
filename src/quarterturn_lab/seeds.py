"""Random seeds derived from names, so that each use has its own random numbers."""

import hashlib


def key(*parts: object) -> int:
    """A 63-bit random seed from anything that can be converted to text.

    >>> key(0, "conv1.weight") == key(0, "conv1.weight") != key(1, "conv1.weight")
    True
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
