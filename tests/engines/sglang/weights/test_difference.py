"""Differences: applied to the old bytes they give the new bytes, for all bit patterns."""

from __future__ import annotations

import struct
import subprocess
import sys
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engines.sglang.weights import difference
from agentrl.engines.sglang.weights.difference import (
    GAP_BYTES,
    LARGEST_GAP,
    apply,
    checksum,
    compare,
    positions_of,
)

WORDS = st.sampled_from([1, 2, 4, 8])


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().view(torch.uint8)


def result(old: torch.Tensor, new: torch.Tensor, word: int) -> torch.Tensor:
    """`old` after the difference to `new` was applied."""
    data = old.clone()
    apply(data, compare(old, new, word)[1], word)
    return data


@pytest.mark.property
@given(WORDS, st.lists(st.tuples(st.binary(min_size=8, max_size=8), st.binary(min_size=8, max_size=8)), max_size=20))
def test_any_old_bytes_become_the_new_bytes(word, pairs):
    old, new = (
        torch.tensor(list(b"".join(column)), dtype=torch.uint8)
        for column in ([a for a, _ in pairs], [b for _, b in pairs])
    )
    assert torch.equal(result(old, new, word), new)


@pytest.mark.property
@given(st.sampled_from([torch.bfloat16, torch.float32]), st.floats(0, 1), st.integers(0, 2**31))
def test_values_of_a_weight_become_the_new_values(dtype, share, seed):
    torch.manual_seed(seed)
    old = torch.randn(300).to(dtype)
    new = torch.where(torch.rand(300) < share, torch.randn(300).to(dtype), old)
    assert torch.equal(result(bits(old), bits(new), dtype.itemsize), bits(new))


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (1.0, 1000)])
def test_delta_of_no_and_of_all_changes_is_exact(share, expected):
    old = torch.zeros(1000, dtype=torch.bfloat16)
    new = old + share
    num_changed, found = compare(bits(old), bits(new), 2)
    assert num_changed == expected
    assert len(found) == max(2, expected) * (GAP_BYTES + 2)  # the first and the last are always listed
    assert torch.equal(result(bits(old), bits(new), 2), bits(new))


def of_bits(pattern: int) -> torch.Tensor:
    return bits(torch.frombuffer(bytearray(struct.pack("<I", pattern)), dtype=torch.float32))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (0x00000000, 0x80000000),  # 0.0 and -0.0
        (0x7FC00000, 0x7FC00001),  # two NaNs
        (0x7F800001, 0xFFC00000),  # a signalling NaN and a negative one
    ],
)
def test_bits_are_compared_and_not_values(old, new):
    assert compare(of_bits(old), of_bits(new), 4)[0] == 1
    assert torch.equal(result(of_bits(old), of_bits(new), 4), of_bits(new))
    assert compare(of_bits(new), of_bits(new), 4)[0] == 0


@pytest.mark.parametrize("position", [0, 1, LARGEST_GAP - 1, LARGEST_GAP, LARGEST_GAP + 1, 3 * LARGEST_GAP + 7])
def test_gaps_longer_than_two_bytes_are_bridged(position):
    old = torch.zeros(4 * LARGEST_GAP, dtype=torch.int16)
    new = old.clone()
    new[position] = -3
    num_changed, found = compare(bits(old), bits(new), 2)
    assert num_changed == 1
    assert len(found) <= 6 * (GAP_BYTES + 2)
    assert torch.equal(result(bits(old), bits(new), 2), bits(new))


def test_positions_above_two_to_the_31_are_exact():
    gaps = torch.full((2**31 // LARGEST_GAP + 2,), LARGEST_GAP, dtype=torch.uint16)
    positions = positions_of(bits(gaps))
    assert int(positions[-1]) == len(gaps) * LARGEST_GAP - 1 > 2**31


@pytest.mark.property
@given(st.integers(1, 9), st.lists(st.booleans(), max_size=30))
def test_pieces_of_a_comparison_do_not_change_the_result(piece_words, changed):
    old = torch.zeros(len(changed), dtype=torch.int16)
    new = torch.tensor(changed, dtype=torch.int16)
    with patch.object(difference, "PIECE_WORDS", piece_words):
        assert compare(bits(old), bits(new), 2)[0] == sum(changed)
        assert torch.equal(result(bits(old), bits(new), 2), bits(new))


def test_no_bytes_have_no_difference():
    nothing = torch.empty(0, dtype=torch.uint8)
    assert len(result(nothing, nothing, 2)) == 0


def test_every_flipped_bit_and_every_swap_changes_the_checksum(monkeypatch):
    monkeypatch.setattr(difference, "PIECE_BYTES", 16)
    data = torch.arange(40, dtype=torch.uint8)
    changes = [data.clone() for _ in range(40 * 8)]
    for number, each in enumerate(changes):
        each[number // 8] ^= 1 << number % 8
    swapped = torch.cat([data[16:32], data[:16], data[32:]])
    sums = {checksum(each) for each in [data, swapped, *changes]}
    assert len(sums) == 2 + len(changes)
    assert checksum(data.clone()) == checksum(data)


@pytest.mark.slow
def test_the_modules_that_run_in_a_server_import_torch_and_the_standard_library_only():
    """Servers have neither the dependencies of agentrl nor time for them."""
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "import agentrl.engines.sglang.weights.server_loader\n"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(names - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["agentrl"]
