"""One line that stands for all weights, bit by bit."""

import hashlib


def digest(arrays):
    """Returns a digest of arrays of numbers."""
    weights = hashlib.sha256()
    for array in arrays:
        weights.update(array.tobytes())
    return weights.hexdigest()
