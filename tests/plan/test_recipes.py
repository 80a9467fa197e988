"""Published runs: the layouts are possible, and the predicted seconds are within the factor that is explained."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipe_memory import RUNS, Memory, fullest
from recipe_memory import table as memory_table
from recipes import RECIPES, Recipe, lengths_of, phases, shape, table

from agentrl.plan.hardware import load_hardware

DOCS = Path(__file__).parents[2] / "docs/plan_recipes.md"


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_step_takes_the_published_seconds_within_the_explained_factor(recipe: Recipe):
    ratio = sum(phases(recipe).values()) / recipe.step_s
    assert 1 / recipe.factor <= ratio <= 1
    assert recipe.why


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_mean_length_is_the_published_one(recipe: Recipe):
    lengths = lengths_of(recipe)
    planned = [each.num_tokens for number in range(40) for each in lengths.group(number, 16)]
    assert sum(planned) / len(planned) == pytest.approx(recipe.mean, rel=0.09)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_layouts_use_all_devices(recipe: Recipe):
    layout, of_model = recipe.layout, shape(recipe.model)
    assert layout.devices % (layout.tensor * layout.pipeline * layout.context) == 0
    assert sum(map(len, layout.stages(of_model.num_layers))) == of_model.num_layers
    assert recipe.servers.devices == layout.devices
    assert layout.devices % load_hardware(recipe.hardware).devices_per_node == 0


@pytest.mark.slow
def test_rollouts_are_the_longest_phase_except_where_weights_are_sent_over_a_slow_network():
    longest = {recipe.name: max(phases(recipe), key=phases(recipe).__getitem__) for recipe in RECIPES}
    assert longest.pop("DeepSeek-V3, 128 GB200") == "publish"
    assert set(longest.values()) == {"rollouts"}


def test_the_table_of_the_documentation_is_current():
    assert table() in DOCS.read_text(encoding="utf-8")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_what_the_authors_ran_fits_and_what_did_not_fit_does_not(run: Memory):
    assert fullest(run).fits == run.fits


def test_the_table_of_memory_in_the_documentation_is_current():
    assert memory_table() in DOCS.read_text(encoding="utf-8")
