"""Resources servers of NeMo-Gym, over HTTP."""
