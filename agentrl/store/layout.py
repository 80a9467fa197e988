"""Names of the folder `trajectories` and of the split `excluded`. Importing this module does not import pyarrow."""

from __future__ import annotations

TRAJECTORIES = "trajectories"
"""Name of the folder of trajectories in a run's folder; it has one subfolder per split."""

EXCLUDED_SPLIT = "excluded"
"""Name of the split with the groups that no step trained on. Readers show this split only on request."""
