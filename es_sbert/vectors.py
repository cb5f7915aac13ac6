"""`Vectors`: the type of embeddings. Docstrings give their shapes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
