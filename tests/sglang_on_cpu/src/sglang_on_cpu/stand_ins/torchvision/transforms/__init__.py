"""See torchvision/__init__.py; Transformers reads `InterpolationMode` on import."""

import enum

from torchvision import missing
from torchvision.transforms import functional as functional
from torchvision.transforms import v2 as v2


class InterpolationMode(enum.Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


__getattr__ = missing(__name__)
