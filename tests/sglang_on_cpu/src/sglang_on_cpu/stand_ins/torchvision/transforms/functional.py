"""See torchvision/__init__.py."""

from torchvision import missing

__getattr__ = missing(__name__)
