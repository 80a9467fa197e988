"""Datasets: reading tasks and dialogues from files or the `datasets` library, and the order of draws."""
