"""Make the ConfigError of h5rows, which the engine does not know, the engine's, with the same line.

Each module of lab that imports h5rows puts its use in a block `with h5_mistakes():`, or a class under `@h5_methods`.
"""

from functools import partial

from h5rows import ConfigError
from samebits.errors import mistakes_of, with_mistakes_of

ConfigError.group = "data."  # where h5rows' arguments are in a config, for its messages

h5_mistakes = partial(mistakes_of, ConfigError)
h5_methods = with_mistakes_of(ConfigError)
