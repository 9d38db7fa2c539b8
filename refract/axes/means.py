"""The mean of measured values with its clustered interval, or what is left of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from refract.results import Estimate
from refract.stats import estimate


def clustered_mean(
    values: Sequence[float] | npt.NDArray[np.float64],
    clusters: Sequence[str],
    *,
    log_scale: bool = False,
    bounds: tuple[float, float] | None = None,
) -> Estimate | float | None:
    """The mean with its interval; the bare number for one cluster; None for no value, or if one is not finite."""
    data = np.asarray(values, dtype=np.float64)
    if not data.size or not np.all(np.isfinite(data)):
        return None
    if len(set(clusters)) < 2:
        return float(data.mean())
    return estimate.mean(data.tolist(), clusters, log_scale=log_scale, bounds=bounds)
