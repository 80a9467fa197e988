"""Datasets: rows of files or of the `datasets` library as tasks or dialogues, and the order they are drawn in."""
