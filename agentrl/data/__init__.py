"""Datasets: reads rows from files or the `datasets` library, and determines the order in which rows are drawn."""
