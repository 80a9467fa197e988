"""Random seeds that depend on names, never on batching or timing (docs/design.md, section 9)."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that depends only on `parts`, such as (run seed, epoch, row, draw, rollout, turn)."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def ids_digest(token_ids: Sequence[int]) -> str:
    """Return a digest of tokens, for use as one of the `parts` of `derive_seed`."""
    return hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=16).hexdigest()
