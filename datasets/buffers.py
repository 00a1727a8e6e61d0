"""Memory for batches that is used again: on a machine with small pages, touching fresh memory costs more than filling it."""

import math
import weakref

import numpy as np
from numpy.typing import NDArray


class Buffers:
    """Gives arrays whose memory comes back when nobody holds them, or a tensor made of them, any more.

    One thread takes; any may be the last to hold. What has come back stays for the next array until this object goes.
    """

    def __init__(self) -> None:
        self._free: list[NDArray[np.float32]] = []

    def take(self, *shape: int) -> NDArray[np.float32]:
        """An array of this shape; what stands in it is arbitrary. Slices of it must not outlive it."""
        size = math.prod(shape)
        memory = self._free.pop() if self._free else None
        if memory is None or memory.size < size:
            # A little more than is asked for, since the next batch may be a little larger.
            memory = np.empty(size + size // 8, np.float32)
        array = memory[:size].reshape(shape)
        weakref.finalize(array, self._free.append, memory).atexit = False
        return array
