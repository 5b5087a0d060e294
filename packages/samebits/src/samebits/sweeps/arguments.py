"""Check the arguments of a command that trains on a machine without its data. Does not import torch.

arguments -> Hydra composes each value once -> configs with interpolations, which may need the data
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from samebits.config import check_arguments, composed, explain, parsed, quoted
from samebits.errors import ConfigError
from samebits.project import Project
from samebits.sweeps.plan import alternatives

ELSEWHERE = ("help", "hydra_help", "cfg", "info", "config_name", "config_path", "config_dir", "shell_completion")


def configs_of(project: Project, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Return the whole configs that Hydra composes, with unresolved interpolations. Raise ConfigError for a mistake.

    A multirun has one config for each value of a swept key, not for each combination. The list is empty for resume=RUN,
    whose config is in the run's directory, and for options that show or replace the config."""
    check_arguments(project.root, arguments)
    args = parsed(quoted(project, arguments))[1]
    resume = next((text for text in reversed(args.overrides) if text.startswith("resume=")), "resume=null")
    if any(getattr(args, name, None) for name in ELSEWHERE) or resume not in ("resume=auto", "resume=null"):
        return []
    choices = [[text] for text in args.overrides]
    try:
        if args.multirun:
            choices = [_choices(one) for one in OverridesParser.create().parse_overrides(args.overrides)]
        first = [texts[0] for texts in choices]
        found = [composed(project, first)]
        for index, texts in enumerate(choices):
            found += [composed(project, [*first[:index], text, *first[index + 1 :]]) for text in texts[1:]]
    except Exception as error:
        if (line := explain(project, error, arguments, composed)) is None:
            raise
        raise ConfigError(line) from error
    return found


def _choices(override: Override) -> list[str]:
    """Return one override for each value. Of a range the first and the last, of an interval the start, because the
    values between them are of the same kind."""
    value = override.value()
    if isinstance(value, IntervalSweep):  # for a search
        return [f"{override.get_key_element()}={value.start}"]
    texts = alternatives(override)
    return [texts[0], texts[-1]] if isinstance(value, RangeSweep) else texts
