"""`agentrl plan`: memory, times and price of a run before it starts, and predicted times of a finished run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import yaml
from pydantic import JsonValue, ValidationError

from agentrl.cli.train import read_config
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, Kind
from agentrl.models.facts import model_content
from agentrl.plan.answer import TimeAnswer, as_json, table, verdict
from agentrl.plan.calibration import calibrate
from agentrl.plan.check import check
from agentrl.plan.counts import shape_of
from agentrl.plan.hardware import Fleet, Hardware, parse_fleet
from agentrl.plan.layout import layout_of, servers_of
from agentrl.plan.lengths import Lengths, LengthsConfig, Spread
from agentrl.plan.measured import Measured, read_run
from agentrl.plan.memory.changes import changes_for
from agentrl.plan.memory.fit import GIB, fit_of
from agentrl.plan.memory.report import memory_json, memory_table, memory_verdict
from agentrl.plan.shapes import Shape
from agentrl.plan.time.step import devices_of
from agentrl.plan.timeline import timeline
from agentrl.plan.times import check_lines, config_of_run, times_of

CPU = "CPU"
"""Name of the hardware whose devices are CPU processes."""
PICTURED_STEPS = 5


def plan(options: argparse.Namespace) -> None:
    """Print the predicted memory and times of a run; with `--check`, measured and predicted times of a finished run."""
    if options.check:
        _check(options)
        return
    saved = read_run(options.saved) if options.saved else None
    config = _config(options)
    shape, fleet = _shape(config), _fleet(options.gpus, config)
    fitted = calibrate(saved, shape, fleet.hardware, config_of_run(options.saved)) if saved else None
    memory = _memory(config, shape, fleet.hardware)
    answer = times_of(config, shape, fleet, _lengths(options.lengths, saved, config), calibration=fitted)
    _show(answer, options, memory)


def _memory(config: RunConfig, shape: Shape, hardware: Hardware) -> dict[str, JsonValue]:
    """Print whether the run fits, and return all numbers."""
    memory = hardware.memory_gib * GIB
    on_cpu = hardware.name == CPU
    fit = fit_of(config, shape, memory, on_cpu=on_cpu)
    changes = [] if fit.fits else changes_for(config, shape, memory, on_cpu=on_cpu)
    print(memory_verdict(fit, changes))
    for line in memory_table(fit, changes):
        print(f"  {line}")
    return memory_json(fit, changes)


def _check(options: argparse.Namespace) -> None:
    measured, config = read_run(options.check), config_of_run(options.check)
    hardware = _fleet(options.gpus, config).hardware
    for line in check_lines(check(measured, _shape(config), hardware, config)):
        print(line)


def _show(answer: TimeAnswer, options: argparse.Namespace, memory: dict[str, JsonValue]) -> None:
    print(verdict(answer))
    for line in table(answer):
        print(f"  {line}")
    if options.json:
        options.json.write_text(json.dumps({"memory": memory, **as_json(answer)}, indent=2) + "\n", encoding="utf-8")
    if options.picture:
        end_s = PICTURED_STEPS * answer.split.step_s
        options.picture.write_text(timeline(answer.split.spans, end_s), encoding="utf-8")


def _config(options: argparse.Namespace) -> RunConfig:
    """The configuration of the command line; with `--from` and without an experiment, that of the run with changes."""
    composed = any(override.startswith("+") for override in options.overrides)
    if not options.saved or composed or options.verl or options.config:
        return read_config(options)
    return config_of_run(options.saved, dict(map(_read, options.overrides)))


def _read(override: str) -> tuple[str, object]:
    key, equals, value = override.partition("=")
    if not equals:
        raise ConfigError.keyless(f"'{override}': expected key=value")
    return key, yaml.safe_load(value)


def _fleet(text: str | None, config: RunConfig) -> Fleet:
    """The devices of `--gpus`; without a number, as many as the configuration uses."""
    if text is None:
        raise ConfigError.keyless("--gpus is missing: expected a number and a device, such as --gpus 64xH100")
    fleet = parse_fleet(text)
    used = devices_of(layout_of(config), servers_of(config))
    return fleet if text.strip()[:1].isdigit() else fleet._replace(num_devices=used)


def _shape(config: RunConfig) -> Shape:
    """The shape of the model, from its `config.json`. Families that are not counted by hand need torch: seconds."""
    if not (content := model_content(config.model.path)):
        text = f"model.path={config.model.path}: there is no readable config.json"
        raise ConfigError.at("model.path", Kind.NOT_FOUND, text)
    if found := shape_of(content):
        return found
    from agentrl.plan.meta import counted  # imports torch and transformers

    try:
        return counted(content)
    except ValueError as error:
        text = f"model.path={config.model.path}: {error}"
        raise ConfigError.at("model.path", Kind.NOT_SUPPORTED, text) from None


def _lengths(file: Path | None, measured: Measured | None, config: RunConfig) -> Lengths:
    """The lengths of a file or of the run, or else assumed ones, which are printed."""
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
