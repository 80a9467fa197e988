"""The base of every configuration section."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen group of keys that refuses unknown keys. The docstring under a field documents its key."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def one_or_many(value: object) -> object:
    """Wrap a single string into a tuple; return other values unchanged."""
    return (value,) if isinstance(value, str) else value


def chat_url(url: str) -> str:
    """Return the address of a chat completions endpoint, without /chat/completions.

    Raises:
        ValueError: the address is not http or https, or contains a password, key or query.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected an address such as http://localhost:8000/v1")
    if parts.username is not None or parts.query:  # config.yaml would store the credentials
        raise ValueError(
            "an address must not contain a password, key or query: put the key in the variable api_key_env"
        )
    return url.rstrip("/").removesuffix("/chat/completions")


KLKind = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "k3+", "low_var_kl+"]
"""Estimators of a KL divergence. NAME+ has the value of the estimator NAME, but the gradient of k2."""
