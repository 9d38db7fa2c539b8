"""Lets torchvision be imported beside a torch that its compiled operators cannot load into.

SGLang imports torchvision for images. Its wheels hold operators for CUDA; beside a CPU build of torch they do not load,
and torchvision then registers functions for two operators that nothing has declared. Declaring their schemas is enough:
nothing on the path of text is replaced.
"""

from __future__ import annotations

import importlib.util

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def declare() -> None:
    """Declares torchvision's two operators, in an interpreter that has both packages."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("torchvision") is None:
        return
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    declare.library = library  # type: ignore[attr-defined]  # schemas live as long as the object that declared them


declare()
