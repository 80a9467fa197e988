"""`agentrl replay`: run one or several replay modes on saved rollouts."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from typing import cast

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentrl.cli.compose import parse_overrides
from agentrl.cli.places import check_replay
from agentrl.config.validate import config_fields
from agentrl.errors import ConfigError, Kind, suggestion
from agentrl.replay.base import Options
from agentrl.replay.modes import MODES, find_mode

_OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_][\w.]*=")


@dataclass(slots=True)
class Words:
    """Parsed command-line words other than flags. `arguments` maps a mode to its argument."""

    run: str
    modes: list[str] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)


def replay(options: argparse.Namespace) -> int:
    """Run the modes in order, print and write their findings; return 1 if one of them failed.

    Raises:
        AgentRLError: the command line is invalid, or a mode cannot run on these rollouts.
    """
    if not options.overrides:
        _list_modes()
        return 0
    words = read_words(options.overrides)
    settings = _options(options, words)
    check_replay(words.run, words.arguments.get("compare"), options.reward)
    from agentrl.replay.command import replay_modes  # imports pyarrow

    silent = str(options.json) == "-"
    with only_our_output() if silent else nullcontext():
        findings = replay_modes(words.run, options.split, words.modes, settings, silent=silent)
    if silent:
        print(findings.json())
    elif options.json:
        findings.write(options.json, findings.json())
    if options.html:
        findings.write(options.html, findings.page())
    if findings.error:  # raised at the end, so that earlier findings are written first
        raise findings.error
    return int(findings.failed)


@contextmanager
def only_our_output() -> Iterator[None]:
    """Redirect output of reward functions and their child processes to stderr, because stdout is for JSON."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def read_words(words: Sequence[str]) -> Words:
    """Parse RUN and the modes with their arguments. Overrides may be anywhere between these words.

    Raises:
        ConfigError, UnknownNameError: the message contains the wrong word and the valid words.
    """
    # os.path, because pathlib raises if an override is too long for a file name
    overrides = [word for word in words if _OVERRIDE.match(word) and not os.path.exists(word)]  # noqa: PTH110
    rest = iter([word for word in words if word not in overrides])
    read = Words(next(rest, ""), overrides=overrides)
    for name in rest:
        entry = find_mode(name)
        if name in read.modes:
            raise ConfigError.keyless(f"'{name}' is given twice")
        read.modes.append(name)
        if entry.argument:
            read.arguments[name] = next(rest, "")
            if not read.arguments[name]:
                raise ConfigError.keyless(f"'{name}' needs {entry.argument} after it ({entry.summary})")
    if not read.run or not read.modes:
        missing = f"mode for '{read.run}'" if read.run else "RUN, the folder of a run"
        raise ConfigError.keyless(f"missing {missing}: agentrl replay RUN MODE..., where MODE is {', '.join(MODES)}")
    return read


def nested_overrides(overrides: Sequence[str]) -> dict[str, object]:
    """Parse `a.b=c` overrides into nested values.

    Raises:
        ConfigError: an override cannot be parsed, or its key is unknown.
    """
    values = OmegaConf.create({})
    try:
        for override in parse_overrides(overrides):
            OmegaConf.update(values, _key(override), override.value(), force_add=True)
        return cast("dict[str, object]", OmegaConf.to_container(values, resolve=True))
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError.keyless(f"cannot read the overrides: {' '.join(str(error).split())}") from None


def _key(override: Override) -> str:
    key, known = override.key_or_group, [name for name, _ in config_fields()]
    if override.is_delete():
        raise ConfigError.at(key, Kind.WRONG_VALUE, f"'{override.input_line}': give `{key}` exactly one value")
    if not any(f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in known):
        raise ConfigError.at(key, Kind.UNKNOWN_KEY, f"unknown key `{key}`: {suggestion(key, known)}")
    return str(key)


def _options(options: argparse.Namespace, words: Words) -> Options:
    return Options(
        rewards=options.reward,
        overrides=nested_overrides(words.overrides),
        tokenizer=options.tokenizer,
        other=words.arguments.get("compare"),
        from_turn=_turn(words.arguments.get("from-turn")),
        unrecorded=options.unrecorded,
        out=options.out,
        allow_unchecked=options.allow_unchecked,
        ks=_ks(options.k),
        level=_level(options.level),
        uid=_uid(options.uid, words.modes),
    )


def _uid(uid: str | None, modes: Sequence[str]) -> str | None:
    if uid is not None and "why" not in modes:
        raise ConfigError.keyless("--uid has no effect without the mode why")
    return uid


def _turn(word: str | None) -> int | None:
    if word is not None and not word.isdecimal():
        raise ConfigError.keyless(f"'from-turn' needs the number of a model turn, counted from 0, not '{word}'")
    return None if word is None else int(word)


def _ks(text: str) -> list[int]:
    numbers = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in numbers):
        raise ConfigError.keyless(f"--k: expected positive integers, for example 1,2,4, got '{text}'")
    return sorted({int(part) for part in numbers})


def _level(text: str) -> float:
    try:
        level = float(text)
    except ValueError:
        level = 0.0
    if not 0 < level < 1:
        raise ConfigError.keyless(f"--level: expected a number between 0 and 1, for example 0.95, got '{text}'")
    return level


def _list_modes() -> None:
    print("usage: agentrl replay RUN MODE... [flags] [key=value ...]\n")
    print("RUN is PATH or PATH@STEP. MODE is one or more of\n")
    for name, entry in MODES.items():
        print(f"  {' '.join(filter(None, (name, entry.argument))):<18}{entry.summary}")
    print("\nflags: agentrl replay --help")
