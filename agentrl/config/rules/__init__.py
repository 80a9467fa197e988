"""Rules about combinations of keys, checked before a run starts."""
