#!/usr/bin/env python3
"""Check the arguments of a command before ./run remote copies anything: with conf/, without data, GPUs and torch.

Exit status: 0 no mistake was found, 2 a mistake, which is printed. What depends on the other machine, such as data,
paths and the number of GPUs, is checked there.
"""

from __future__ import annotations

import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_type_hints

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Check the arguments. Return the exit status."""
    command, *arguments = sys.argv[1:]
    # first: the modules of this project, not an installed version
    sys.path[:0] = [str(path) for path in (ROOT / "src", *sorted(ROOT.glob("packages/*/src")))]
    if command == "train":
        return check_overrides(arguments)
    from reference_commands import COMMANDS, NO_PARSER, parser_of

    if command in COMMANDS and command not in NO_PARSER and (parser := parser_of(COMMANDS[command][0])):
        try:
            parser.parse_intermixed_args(arguments)
        except TypeError:  # argparse: it has commands of its own, or takes the rest
            parser.parse_args(arguments)
    return 0


def check_overrides(arguments: list[str]) -> int:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from lab.groups import RootConfig
    from lab.project import PROJECT
    from samebits.errors import ConfigError
    from samebits.schema import typed
    from samebits.sweeps import configs_of

    hints = get_type_hints(RootConfig)
    try:
        for config in configs_of(PROJECT, arguments):
            node = OmegaConf.create(config)
            for group in hints.keys() & config.keys():
                if is_dataclass(hints[group]):
                    try:
                        values = OmegaConf.to_container(node[group], resolve=True)
                    except (OmegaConfBaseException, ConfigError):
                        continue  # needs the data, or a variable of the other machine
                    typed(hints[group], values, group, PROJECT.moved_keys)  # type: ignore[arg-type]
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
