"""The name of the folder with a run's trajectories, for code that must not load pyarrow."""

from __future__ import annotations

TRAJECTORIES = "trajectories"
"""The folder of a run that holds the trajectories, with one subfolder per split."""

EXCLUDED_SPLIT = "excluded"
"""The split of groups that no step trained on. Readers show it only on request."""
