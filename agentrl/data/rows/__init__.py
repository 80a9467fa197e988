"""Rows of datasets: JSON, Parquet, task folders, the Hugging Face hub, or a dataset class of the user."""

from agentrl.data.rows.base import Row, Rows
from agentrl.data.rows.open import open_rows

__all__ = ["Row", "Rows", "open_rows"]
