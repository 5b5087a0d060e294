"""Convert the ConfigError of h5rows to the ConfigError of samebits, with the same message.

`splits_of(rules)` chooses the rows of splits by the run's version of the rules.

Each module of lab that uses h5rows does so in a block `with h5_mistakes():`, or in a class decorated by `@h5_methods`.
"""

from contextlib import AbstractContextManager
from functools import partial

from h5rows import ConfigError
from h5rows.integration import calling
from samebits.errors import mistakes_of, with_mistakes_of

H5_COMMAND = calling.command = ("./run", "h5")  # as messages of h5rows name its commands
ConfigError.group = "data."  # prefix of h5rows' arguments in its messages: their config group

h5_mistakes = partial(mistakes_of, ConfigError)
h5_methods = with_mistakes_of(ConfigError)


def splits_of(rules: int) -> AbstractContextManager[None]:
    """In this block, data sets choose the rows of splits by the given version of lab.options.RULES."""
    from h5rows.integration import split_version  # imports numpy, which --help does not need

    return split_version(2 if rules >= 3 else 1)
