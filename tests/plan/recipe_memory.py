"""Published runs that fitted into memory, and those that did not, by their authors. Used by tests and docs."""

from __future__ import annotations

from dataclasses import dataclass

from recipes import NEMO, RECIPES, Recipe, megatron, servers, shape

from agentrl.cli.compose import compose_config
from agentrl.config.resolve import with_values
from agentrl.config.rollout import SglangConfig
from agentrl.config.run import RunConfig
from agentrl.plan.hardware import GIB, load_hardware
from agentrl.plan.memory.fit import Use, fit_of

VERL_MINIMUM = "verl, docs/perf/dpsk.md (`OFFLOAD_FRACTION=1`)"


@dataclass(frozen=True, slots=True)
class Memory:
    """A run and whether its authors say that it fits.

    Attributes:
        on_cpu: AdamW runs on the CPU, where its state stays.
    """

    name: str
    source: str
    recipe: Recipe
    fits: bool
    on_cpu: bool = False


def named(name: str) -> Recipe:
    return next(recipe for recipe in RECIPES if recipe.name == name)


H20_96 = named("DeepSeek-V3, 96 H20")
H20_32 = Recipe(
    name="Qwen3-235B-A22B, 32 H20",
    source=VERL_MINIMUM,
    model="qwen3_235b_a22b",
    hardware="h20",
    layout=megatron(32, 4, 1, 4, 8, ends=(12, 10)),
    servers=servers(32, 8),
    rollouts=256,
    group_size=8,
    mean=2048 + 9632,
    most=2048 + 9632,
    prompt=2048,
    step_s=0,
    factor=0,
    why="",
)
RUNS = (
    *(Memory(recipe.name, NEMO, recipe, fits=True) for recipe in RECIPES if recipe is not H20_96),
    Memory(f"{H20_96.name}, AdamW on the CPU", VERL_MINIMUM, H20_96, fits=True, on_cpu=True),
    Memory(H20_96.name, VERL_MINIMUM, H20_96, fits=False),
    Memory(f"{H20_32.name}, AdamW on the CPU", VERL_MINIMUM, H20_32, fits=True, on_cpu=True),
    Memory(H20_32.name, VERL_MINIMUM, H20_32, fits=False),
)


def config_of(recipe: Recipe) -> RunConfig:
    """The configuration with which agentrl would do a recipe: trainer and engine take turns on the same devices."""
    per_node = load_hardware(recipe.hardware).devices_per_node
    sglang = SglangConfig(
        num_replicas=recipe.servers.replicas, server_args={"tp_size": recipe.servers.tensor}, colocate=True
    )
    return with_values(
        compose_config([f"+experiment={recipe.model}"]),
        {
            "actor.megatron": recipe.layout.megatron,
            "actor.param_offload": True,
            "actor.optimizer_offload": True,
            "actor.ppo_max_token_len_per_gpu": recipe.most // recipe.layout.context,
            "actor.ppo_mini_batch_size": None,
            "data.train_batch_size": recipe.rollouts // recipe.group_size,
            "data.max_prompt_length": recipe.prompt,
            "data.max_response_length": recipe.most - recipe.prompt,
            "model.enable_gradient_checkpointing": recipe.recompute,
            "rollout.n": recipe.group_size,
            "rollout.sglang": sglang,
            "ref.param_offload": True,
            "trainer.nnodes": recipe.layout.devices // per_node,
            "trainer.n_gpus_per_node": per_node,
        },
    )


def fullest(run: Memory) -> Use:
    """The fullest moment of the fullest device, relative to its memory."""
    hardware = load_hardware(run.recipe.hardware)
    fit = fit_of(config_of(run.recipe), shape(run.recipe.model), hardware.memory_gib * GIB)
    if not run.on_cpu:
        return fit.worst
    spared = [Use(use.device, use.phase, _without_optimizer(use), use.available) for use in fit.uses]
    return max(spared, key=lambda use: use.total / use.available)


def _without_optimizer(use: Use) -> dict[str, float]:
    return {part: size for part, size in use.parts.items() if part != "optimizer"}


def table() -> str:
    """The second table of docs/plan_recipes.md."""
    lines = ["| run | source | authors | plan | peak, GiB | available, GiB |", "|---|---|---|---|---|---|"]
    for run in RUNS:
        use = fullest(run)
        words = ["fits" if fits else "does not fit" for fits in (run.fits, use.fits)]
        sizes = [f"{size / GIB:.0f}" for size in (use.total, use.available)]
        lines.append(f"| {' | '.join([run.name, run.source, *words, *sizes])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
