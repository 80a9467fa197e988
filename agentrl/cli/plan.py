"""`agentrl plan`: memory, times and price of a run before it starts; predicted and measured times of a finished run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import JsonValue, ValidationError

from agentrl.cli.train import read_config
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, Kind
from agentrl.models.facts import model_content
from agentrl.models.shape import number
from agentrl.plan.answer import TimeAnswer, as_json, table, verdict
from agentrl.plan.best import best_json, best_lines, best_of
from agentrl.plan.calibration import Calibration, calibrate
from agentrl.plan.counts import NO_MODEL, shape_of
from agentrl.plan.devices import is_divided, placed, refuse_huge, too_many
from agentrl.plan.hardware import CPU, GIB, Fleet, Hardware, hardware_in
from agentrl.plan.layout import num_used
from agentrl.plan.lengths import Lengths, LengthsConfig, Remembered, Spread
from agentrl.plan.memory.changes import changes_for
from agentrl.plan.memory.fit import fit_of, room_for_kv
from agentrl.plan.memory.report import memory_json, memory_table, memory_verdict
from agentrl.plan.shapes import Shape
from agentrl.plan.timeline import timeline
from agentrl.plan.times import times_of

if TYPE_CHECKING:
    from agentrl.plan.measured import Measured

PICTURED_STEPS = 5
MOST_PARTS = {"num_hidden_layers": 10_000, "n_layer": 10_000, "num_experts": 100_000, "num_local_experts": 100_000}
"""Largest accepted numbers in a `config.json`. Saved runs are not trusted, and a huge number would stall the plan."""
NO_CHANGES: Mapping[str, object] = {}
_GPUS = "cluster.gpus="
"""Another way to write `--gpus`."""


def plan(options: argparse.Namespace) -> None:
    """Print the predicted memory and times of a run; with `--check`, measured and predicted times of a finished run."""
    _read_gpus(options)
    if options.check:
        _check(options)
        return
    saved = _Saved(options.saved) if options.saved else None
    fleet, config = placed(options.gpus, _config(options, saved), saved.device if saved else None)
    refuse_huge(config)
    shape = _shape(config)
    fitted = saved.calibration(options.gpus, shape, fleet.hardware) if saved else None
    lengths = Remembered(_lengths(options.lengths, saved.measured if saved else None, config))
    memory = _memory(config, shape, fleet)
    found: dict[str, JsonValue] = {"memory": memory}
    if answer := _times(config, shape, fleet, lengths, fitted, prefix="" if memory["fits"] else "if it fitted: "):
        found |= as_json(answer)
    if is_divided(config, fleet):
        best = best_of(config, shape, fleet, lengths, fitted)
        print("\n".join(best_lines(best, answer.split.step_s if answer and memory["fits"] else None)))
        found["divisions"] = best_json(best)
    _write(options, found, answer)


class _Saved:
    """A saved run. The modules that read the run are imported only here, because their import takes half a second."""

    def __init__(self, where: str) -> None:
        from agentrl.plan.measured import read_run
        from agentrl.plan.saved_config import device_of_run

        self._where, self.measured, self.device = where, read_run(where), device_of_run(where)

    def config(self, changes: Mapping[str, object] = NO_CHANGES) -> RunConfig:
        """Return the configuration of the run. `changes` contains other values for some keys (dotted names)."""
        from agentrl.plan.saved_config import config_of_run

        return config_of_run(self._where, changes)

    def calibration(self, gpus: str | None, shape: Shape, hardware: Hardware) -> Calibration | None:
        """Return the measured speeds of the run. Print a reason and return None if the plan cannot use these speeds.

        Args:
            gpus: value of `--gpus`; determines the number of GPUs of servers that the run used but did not start.
            shape: shape of the planned model; used if the folder of the run's model no longer exists.
        """
        was, now = hardware_in(self.device or ""), hardware_in(hardware.name)
        if was and now and was != now:  # a name from a user's own hardware file is unknown
            print(f"speeds: those of {hardware.name}, not calibrated, because the run was on {was.upper()}")
            return None
        try:
            _, config = placed(gpus, self.config(), self.device)
        except ConfigError as error:
            print(f"speeds: those of {hardware.name}, not calibrated, because the run cannot be planned: {error}")
            return None
        refuse_huge(config)
        path = config.model.path
        own = _shape(config) if path != NO_MODEL and model_content(path) else shape
        return calibrate(self.measured, own, hardware, config)


def _memory(config: RunConfig, shape: Shape, fleet: Fleet) -> dict[str, JsonValue]:
    """Print whether the run fits into memory, and return all printed numbers."""
    memory, on_cpu = fleet.hardware.memory_gib * GIB, fleet.hardware.name == CPU
    fit = fit_of(config, shape, memory, on_cpu=on_cpu)
    most, per_node = fleet.num_devices, fleet.hardware.devices_per_node
    search = partial(changes_for, config, shape, memory, on_cpu=on_cpu, num_devices=most, per_node=per_node)
    changes = [] if fit.fits else search()
    print(memory_verdict(fit, changes))
    for line in memory_table(fit, changes):
        print(f"  {line}")
    return memory_json(fit, changes)


def _times(
    config: RunConfig, shape: Shape, fleet: Fleet, lengths: Lengths, fitted: Calibration | None, prefix: str
) -> TimeAnswer | None:
    """Print and return the times of the configuration; None if it needs more devices than are available."""
    if problem := too_many(config, fleet):
        print(f"devices: not enough; {problem}")
        return None
    room = room_for_kv(config, shape, fleet.hardware.memory_gib * GIB)
    answer = times_of(config, shape, fleet, lengths, calibration=fitted, max_kv_tokens=room)
    print(f"{prefix}{verdict(answer)}")
    for line in table(answer):
        print(f"  {line}")
    if (unused := fleet.num_devices - num_used(config)) > 0:
        print(f"  {unused} of {fleet.num_devices} devices are not used")
    return answer


def _check(options: argparse.Namespace) -> None:
    from agentrl.plan.check import check, check_lines

    saved = _Saved(options.check)
    fleet, config = placed(options.gpus, saved.config(dict(map(_read, options.overrides))), saved.device)
    refuse_huge(config)
    for line in check_lines(check(saved.measured, _shape(config), fleet.hardware, config)):
        print(line)


def _write(options: argparse.Namespace, found: dict[str, JsonValue], answer: TimeAnswer | None) -> None:
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if options.picture and not answer:
        print(f"picture: {options.picture} is not written, because the configuration has no times")
    elif options.picture and answer:
        end_s = PICTURED_STEPS * answer.split.step_s
        options.picture.write_text(timeline(answer.split.spans, end_s), encoding="utf-8")


def _config(options: argparse.Namespace, saved: _Saved | None) -> RunConfig:
    """Return the configuration of the command line.

    `--from` uses the saved run's configuration with overrides, unless an experiment, `--verl` or `--config` is given.
    """
    composed = any(override.startswith("+") for override in options.overrides)
    if saved is None or composed or options.verl or options.config:
        return read_config(options)
    return saved.config(dict(map(_read, options.overrides)))


def _read_gpus(options: argparse.Namespace) -> None:
    """Read `cluster.gpus=64xH100` as `--gpus 64xH100`."""
    given = [each for each in options.overrides if each.startswith(_GPUS)]
    if given and options.gpus:
        raise ConfigError.keyless(f"--gpus {options.gpus} and {given[0]} both set the devices: give one of them")
    for each in given:
        options.gpus = each.removeprefix(_GPUS)
        options.overrides.remove(each)


def _read(override: str) -> tuple[str, object]:
    key, equals, value = override.partition("=")
    if not equals:
        raise ConfigError.keyless(f"'{override}': expected key=value")
    try:
        return key, yaml.safe_load(value)
    except (yaml.YAMLError, RecursionError):
        raise ConfigError.keyless(f"'{override}': the value is not valid YAML") from None


def _shape(config: RunConfig) -> Shape:
    """Return the shape of the model, read from its `config.json`.

    Torch, whose import takes seconds, is imported only for model families that `plan.counts` does not know.
    """
    if config.model.path == NO_MODEL:
        raise ConfigError.at("model.path", Kind.NOT_FOUND, f"model.path: {NO_MODEL}: give model.path=FOLDER")
    if not (content := model_content(config.model.path)):
        text = f"model.path={config.model.path}: there is no readable config.json"
        raise ConfigError.at("model.path", Kind.NOT_FOUND, text)
    for name, most in MOST_PARTS.items():
        if (given := number(content, name) or 0) > most:
            text = f"model.path={config.model.path}: {name} is {given}; the plan supports at most {most:,}"
            raise ConfigError.at("model.path", Kind.NOT_SUPPORTED, text)
    if found := shape_of(content):
        return found
    from agentrl.plan.meta import counted  # imports torch and transformers

    try:
        return counted(content)
    except ValueError as error:
        text = f"model.path={config.model.path}: {error}"
        raise ConfigError.at("model.path", Kind.NOT_SUPPORTED, text) from None


def _lengths(file: Path | None, measured: Measured | None, config: RunConfig) -> Lengths:
    """Return the lengths in the file, else those of the saved run. Without file and run, assume and print lengths."""
    if file is not None:
        return _read_lengths(file)
    if measured:
        return measured.lengths
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    turn = Spread(mean=0.4 * response, p95=response, most=response)
    print(f"lengths: assumed, {0.4 * response:g} sampled tokens on average; give --lengths FILE or --from RUN")
    return LengthsConfig(prompt_tokens=Spread(mean=prompt / 2), turn_tokens=turn)


def _read_lengths(file: Path) -> LengthsConfig:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        return LengthsConfig.model_validate(values)
    except ValidationError as error:
        mistakes = [f"'{'.'.join(map(str, each['loc']))}': {each['msg']}" for each in error.errors()]
        raise ConfigError.keyless(*(f"{file}, {mistake}" for mistake in mistakes)) from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError.keyless(f"--lengths {file}: {str(error).splitlines()[0]}") from None
