"""Environments that run as servers of other projects: OpenEnv, and resources servers of NeMo-Gym."""
