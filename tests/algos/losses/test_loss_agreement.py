"""Losses, KL, aggregation and preferences against verl's and TRL's. Tests pin where verl or TRL differs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def agreement(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import algorithm_agreement

    yield algorithm_agreement
    for name in ("algorithm_agreement", "agreement_advantages", "agreement_losses"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_values_and_gradients_equal_the_reference(
    agreement: ModuleType, run_peer: Callable[..., Any], tmp_path: Path
) -> None:
    found = agreement.largest(agreement.differences("losses", run_peer, tmp_path))
    assert len(found) > 40
    assert {row: difference for row, difference in found.items() if difference > 1e-5} == {}


@pytest.mark.slow
@pytest.mark.parametrize(("peer", "kind", "name"), [("trl", "group_relative", "grpo"), ("verl", "policy", "geo_mean")])
def test_peers_count_sequences_without_trained_tokens(agreement, run_peer, tmp_path, peer, kind, name):
    """Our mean over sequences counts only sequences with a trained token: four of these six."""
    import agreement_losses as losses

    batches = [batch | {"mask": batch["mask_with_empty_rows"]} for batch in losses.BATCHES]
    asked = {"kind": kind, "name": name, "options": {}, "aggregation": "seq-mean-token-mean", "weighed": False}
    asked |= {"advantages": "sequence_advantages", "length": losses.WIDTH, "batch": 0}
    questions = tmp_path / "questions.json"
    questions.write_text(json.dumps({"batches": batches, "asked": [asked]}))
    (theirs,) = run_peer(peer, BENCHMARKS / f"peers/{peer}_losses.py", questions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "BATCHES", batches)
        ours = losses.policy(
            0,
            "vanilla" if name == "grpo" else "gmpo",
            {"clip_ratio_c": 1e9} if name == "grpo" else {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2},
            "seq-mean-token-mean",
            "sequence_advantages",
        )()
    assert [number * 4 / 6 for number in ours] == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def test_difference_is_detected(agreement: ModuleType) -> None:
    import agreement_losses as losses

    def answer(loss: str, **options: float) -> list[float]:
        return losses.policy(0, loss, options, "token-mean", "token_advantages")()

    assert agreement.relative(answer("vanilla"), answer("vanilla")) == 0
    assert agreement.relative(answer("vanilla"), answer("vanilla", clip_ratio_high=0.3)) > 1e-3
    for name in ("cispo", "sapo", "dro", "dppo", "gspo", "gmpo", "kl_cov"):
        assert agreement.relative(answer("vanilla"), answer(name)) > 1e-3


def test_document_figures_are_updated_by_row(agreement: ModuleType) -> None:
    page = """| loss | what | verl | trl |
|---|---|---|---|
| `gspo` | x | 1 [2] | 7 |
| `gpg` | x | 5 | 6 |

| estimator | verl |
|---|---|
| `gpg` | 4 |"""
    found = {"losses": {("gspo", "verl"): 3.14e-16, ("gpg", "trl"): 0.0}, "advantages": {("gpg", "verl"): 2e-9}}
    assert agreement.refreshed(page, found).split("\n")[2:] == [
        "| `gspo` | x | 3e-16 [2] | 7 |",
        "| `gpg` | x | 5 | 0 |",
        "",
        "| estimator | verl |",
        "|---|---|",
        "| `gpg` | 2e-09 |",
    ]
