"""Published runs: what their authors ran, and what they measured. Used by tests and by docs/plan_recipes.md."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from large_models import shape_of as content_of

from agentrl.config.megatron import MegatronConfig
from agentrl.plan.counts import shape_of
from agentrl.plan.hardware import load_hardware
from agentrl.plan.layout import Layout, Servers
from agentrl.plan.lengths import LengthsConfig, Spread
from agentrl.plan.shapes import Shape
from agentrl.plan.split.setting import Setting
from agentrl.plan.split.simulate import simulate
from agentrl.plan.time.passes import Passes
from agentrl.plan.time.sampling import Sampling
from agentrl.plan.time.step import Instant, publish_s
from agentrl.plan.time.training import Training

NEMO = "NeMo-RL 0.6, docs/about/performance-summary.md"
VERL = "verl, docs/perf/dpsk.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A published run.

    Attributes:
        model: experiment whose model it is.
        rollouts: rollouts of a step.
        prompt, mean, most: tokens of the prompt; mean and largest length of a rollout with prompt.
        spread: 95th percentile of the sampled tokens, as a multiple of their mean; no author states it.
        step_s: measured seconds of a step.
        factor: predicted seconds are between 1 / factor and 1 times the measured seconds; `why` explains the rest.
    """

    name: str
    source: str
    model: str
    hardware: str
    layout: Layout
    servers: Servers
    rollouts: int
    group_size: int
    mean: int
    most: int
    prompt: int = 128
    max_staleness: int = 0
    recompute: bool = True
    num_scored: int = 1
    updates: int = 1
    spread: float = 2.2
    step_s: float
    factor: float
    why: str


def megatron(
    devices: int, tensor: int, context: int, expert: int, pipeline: int, *, ends: tuple[int, int] | None = None
) -> Layout:
    """A layout in the order of NeMo-RL's table: TP, CP, EP, PP."""
    first, last = ends or (None, None)
    return Layout(
        kind="megatron",
        devices=devices,
        megatron=MegatronConfig(
            tensor_model_parallel_size=tensor,
            context_parallel_size=context,
            expert_model_parallel_size=expert,
            expert_tensor_parallel_size=1,
            pipeline_model_parallel_size=pipeline,
            num_layers_in_first_pipeline_stage=first,
            num_layers_in_last_pipeline_stage=last,
        ),
    )


def servers(devices: int, tensor: int, *, colocate: bool = True) -> Servers:
    return Servers(embedded=False, replicas=devices // tensor, tensor=tensor, colocate=colocate)


COLOCATED = (
    "the authors' step also moves weights and optimizer between CPU and GPU, resizes the KV cache and logs; expert"
    " products with few tokens are far below the stated share of the peak, and the engine does not reach its bandwidth"
)
OFFLOADED = "as above; the engine (vLLM 0.8.5 over 4 nodes per replica, without CUDA graphs) took 1050 s of the step"
RECIPES = (
    Recipe(
        name="DeepSeek-V3, 256 H100",
        source=NEMO,
        model="deepseek_v3",
        hardware="h100",
        layout=megatron(256, 1, 1, 16, 16, ends=(3, 2)),
        servers=servers(256, 32),
        rollouts=512,
        group_size=16,
        mean=701,
        most=1536,
        step_s=134,
        factor=2.2,
        why=COLOCATED,
    ),
    Recipe(
        name="DeepSeek-V3, 512 H100",
        source=NEMO,
        model="deepseek_v3",
        hardware="h100",
        layout=megatron(512, 1, 1, 16, 16, ends=(3, 2)),
        servers=servers(512, 32),
        rollouts=512,
        group_size=16,
        mean=697,
        most=1536,
        step_s=111,
        factor=2.2,
        why=COLOCATED,
    ),
    Recipe(
        name="DeepSeek-V3, 128 GB200",
        source=NEMO,
        model="deepseek_v3",
        hardware="gb200",
        layout=megatron(128, 1, 1, 16, 8, ends=(7, 6)),
        servers=servers(128, 32),
        rollouts=512,
        group_size=16,
        mean=711,
        most=1536,
        step_s=108,
        factor=3,
        why=COLOCATED,
    ),
    Recipe(
        name="DeepSeek-V3, 96 H20",
        source=VERL,
        model="deepseek_v3",
        hardware="h20",
        layout=megatron(96, 8, 1, 8, 12, ends=(5, 6)),
        servers=servers(96, 32),
        rollouts=768,
        group_size=8,
        mean=2160,
        most=11_680,
        prompt=200,
        num_scored=2,
        updates=3,
        step_s=1700,
        spread=3.0,
        factor=4,
        why=OFFLOADED,
    ),
    Recipe(
        name="Qwen3-235B-A22B, 128 H100",
        source=NEMO,
        model="qwen3_235b_a22b",
        hardware="h100",
        layout=megatron(128, 2, 2, 16, 8, ends=(11, 11)),
        servers=servers(128, 16),
        rollouts=512,
        group_size=32,
        mean=5698,
        most=8192,
        spread=1.8,
        step_s=395,
        factor=1.3,
        why=COLOCATED,
    ),
    Recipe(
        name="Qwen3-30B-A3B, 32 H100",
        source=NEMO,
        model="qwen3_30b_a3b",
        hardware="h100",
        layout=megatron(32, 1, 1, 8, 1),
        servers=servers(32, 2),
        rollouts=2048,
        group_size=32,
        mean=3203,
        most=4096,
        spread=1.4,
        recompute=False,
        step_s=192,
        factor=2.5,
        why=COLOCATED,
    ),
)
"""Runs of RL whose seconds per step their authors state."""


def lengths_of(recipe: Recipe) -> LengthsConfig:
    """Lengths with the authors' mean. Lengths above `most` are cut off, so the mean before that is higher."""
    sampled = recipe.mean - recipe.prompt
    spread = Spread(mean=sampled * 1.03, p95=sampled * recipe.spread)
    return LengthsConfig(prompt_tokens=Spread(mean=recipe.prompt), turn_tokens=spread, max_tokens=recipe.most)


@cache
def shape(model: str) -> Shape:
    found = shape_of(content_of(model))
    assert found is not None
    return found


@cache
def phases(recipe: Recipe) -> dict[str, float]:
    """Predicted seconds of a step by phase."""
    of_model, hardware, lengths = shape(recipe.model), load_hardware(recipe.hardware), lengths_of(recipe)
    passes = Passes(
        num_scored=recipe.num_scored, updates=recipe.updates, recompute=recipe.recompute, max_tokens=recipe.most
    )
    groups = recipe.rollouts // recipe.group_size
    planned = [each for number in range(groups) for each in lengths.group(number, recipe.group_size)]
    samples = [
        sample
        for number, each in enumerate(planned)
        for sample in each.samples(str(number), str(number // recipe.group_size), share=False)
    ]
    trainer = Training(of_model, recipe.layout, hardware, passes)
    engine = Sampling(of_model, recipe.servers, hardware)
    setting = Setting(groups, recipe.group_size, num_replicas=recipe.servers.replicas)
    return {
        "rollouts": simulate(lengths, engine, Instant(), setting, num_steps=1, warm_up=0).step_s,
        "score": trainer.score_s(samples),
        "learn": trainer.learn_s(samples),
        "publish": publish_s(of_model, recipe.layout, recipe.servers, hardware, hardware),
    }


def table() -> str:
    """The table of docs/plan_recipes.md."""
    lines = [
        "| run | source | measured, s | predicted, s | ratio | rollouts, score, learn, publish |",
        "|---|---|---|---|---|---|",
    ]
    for recipe in RECIPES:
        found = phases(recipe)
        total = sum(found.values())
        parts = ", ".join(f"{value:.2g}" if value < 100 else f"{value:.0f}" for value in found.values())
        cells = (
            recipe.name,
            recipe.source,
            f"{recipe.step_s:g}",
            f"{total:.0f}",
            f"{total / recipe.step_s:.2f}",
            parts,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
