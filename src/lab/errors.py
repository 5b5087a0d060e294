"""The error that users see without a traceback."""


class ConfigError(ValueError):
    """A mistake of the user's: one line that names the key or file, the value and the remedy."""
