"""See torchvision/__init__.py."""

from torchvision import missing
from torchvision.transforms.v2 import functional as functional

__getattr__ = missing(__name__)
