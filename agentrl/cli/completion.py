"""`agentrl completion SHELL`: a script that completes subcommands, flags, keys and experiments."""

from __future__ import annotations

import argparse

from agentrl.cli.commands import COMMANDS
from agentrl.cli.compose import configs_dir
from agentrl.config.validate import config_fields

_BASH = """\
_agentrl() {
  local current="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}" flags=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then COMPREPLY=($(compgen -W "%(commands)s" -- "$current")); return; fi
  case "$command" in
%(cases)s
  esac
  compopt -o default 2>/dev/null
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$flags" -- "$current")) ;;
    *=*) ;;
    *) case "$command" in
         %(keyed)s) compopt -o nospace 2>/dev/null
           COMPREPLY=($(compgen -W "%(keys)s %(experiments)s" -- "$current")) ;;
       esac ;;
  esac
}
complete -F _agentrl agentrl
"""


def completion(options: argparse.Namespace) -> None:
    """Print the script for `options.shell`; `source <(agentrl completion bash)` uses it in bash."""
    print(script(options.shell), end="")


def script(shell: str) -> str:
    """Return the script for bash, zsh (through its bash emulation) or fish."""
    if shell == "fish":
        return _fish()
    head = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    cases = "\n".join(f'    {name}) flags="{" ".join(flags_of(name))}" ;;' for name in COMMANDS)
    words = {"commands": " ".join(COMMANDS), "cases": cases, "keyed": "|".join(_keyed())}
    return head + _BASH % {**words, "keys": " ".join(_keys()), "experiments": " ".join(_experiments())}


def flags_of(command: str) -> list[str]:
    """Flags of a subcommand."""
    words = argparse.ArgumentParser()
    COMMANDS[command].arguments(words)
    return ["--traceback", *words._option_string_actions]  # argparse has no public list of flags


def _fish() -> str:
    lines = ["complete -c agentrl -f"]
    for name in COMMANDS:
        lines.append(f"complete -c agentrl -n __fish_use_subcommand -a {name} -d '{_quoted(COMMANDS[name].summary)}'")
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        lines += [f"complete -c agentrl {seen} -l {flag[2:]}" for flag in flags_of(name) if flag.startswith("--")]
        lines.append(f"complete -c agentrl {seen} -F")
    keyed = f"-n '__fish_seen_subcommand_from {' '.join(_keyed())}'"
    lines.append(f"complete -c agentrl {keyed} -a '{' '.join([*_keys(), *_experiments()])}'")
    return "\n".join(lines) + "\n"


def _keyed() -> list[str]:
    """Subcommands for which the script completes configuration keys."""
    return ["train", "eval", "generate", "config"]


def _keys() -> list[str]:
    return [f"{key}=" for key, _ in config_fields()]


def _experiments() -> list[str]:
    return [f"+experiment={file.stem}" for file in sorted((configs_dir() / "experiment").glob("*.yaml"))]


def _quoted(text: str) -> str:
    return text.replace("'", "\\'")
