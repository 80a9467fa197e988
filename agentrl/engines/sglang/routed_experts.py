"""Which experts a server's router sent each token to, as its answers say it."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from agentrl.engines.sglang.client import ServerError

if TYPE_CHECKING:
    from torch import Tensor


def decode_routed_experts(value: object, num_tokens: int, num_layers: int, top_k: int) -> Tensor:
    """[num_tokens - 1, num_layers, top_k] int32 from `meta_info.routed_experts`; layers without a router hold zeros.

    SGLang writes base64 of little-endian int32 without a shape (`state_capturer/routed_experts.py`).

    Args:
        num_tokens: of the context and what was sampled: the last token predicts nothing.
        num_layers: all of the model's, dense ones too: `num_hidden_layers` of its configuration.
        top_k: `num_experts_per_tok` of its configuration.

    Raises:
        ServerError: it is no such text, or of another length.
    """
    import numpy as np
    import torch

    if not isinstance(value, str):
        raise ServerError(
            f"the server says no routed experts, but {value!r}: start it with '--enable-return-routed-experts'"
        )
    try:
        content = base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ServerError(f"the server's routed experts are no base64: {error}") from error
    if len(content) != 4 * (num_tokens - 1) * num_layers * top_k:
        raise ServerError(
            f"the server's routed experts have {len(content)} bytes, not 4 for each of {num_tokens - 1} tokens,"
            f" {num_layers} layers and {top_k} experts"
        )
    experts = np.frombuffer(bytearray(content), "<i4")  # a copy that may be written to, as torch wants it
    return torch.from_numpy(experts).view(num_tokens - 1, num_layers, top_k)
