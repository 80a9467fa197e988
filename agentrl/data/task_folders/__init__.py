"""Tasks as folders in Harbor's format: how they are read."""
