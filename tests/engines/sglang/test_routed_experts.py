"""Routed experts in the format that servers report."""

from __future__ import annotations

import base64
import struct

import pytest

from agentrl.engines.sglang.client import ServerError
from agentrl.engines.sglang.requests import decode_routed_experts


def said(*numbers: int) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}i", *numbers)).decode()


def test_rows_are_tokens_then_layers_then_experts():
    experts = decode_routed_experts(said(*range(8)), num_tokens=3, num_layers=2, top_k=2)
    assert experts.tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (None, "expected routed experts, got None: start the server with '--enable-return-routed-experts'"),
        ("a?", "are not base64"),
        (said(1, 2, 3), "have 12 bytes, not 4 for each of 2 tokens, 2 layers and 2 experts"),
    ],
)
def test_a_wrong_shape_is_an_error(value, complaint):
    with pytest.raises(ServerError, match=complaint):
        decode_routed_experts(value, num_tokens=3, num_layers=2, top_k=2)
