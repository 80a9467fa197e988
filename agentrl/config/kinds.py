"""Names that several sections share."""

from __future__ import annotations

from typing import Literal

KLKind = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "k3+", "low_var_kl+"]
"""Estimators of a KL divergence; with + the value is theirs and the gradient that of k2 (straight-through)."""
