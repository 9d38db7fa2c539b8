"""The axes by name: the only list of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from refract.axes.base import Axis
from refract.axes.kld import Kld
from refract.axes.plad import Plad
from refract.axes.rniah import Rniah
from refract.axes.trajectory import Trajectory

AXES: Mapping[str, Callable[..., Axis]] = MappingProxyType({axis.name: axis for axis in (Trajectory, Kld, Rniah, Plad)})
"""Name to class: called without arguments it gives the axis with its default knobs, its fields are the knobs."""
