"""Check and build nodes with a `_target_`. Does not import torch.

Input: the project (samebits.project), whose packages and classes are allowed; nodes, plain or of OmegaConf, with their
keys in the config. Output: the object that a node names, or the node completed with values of the run.

Guarantees: only modules that the project allows are imported; a check builds nothing. Unknown arguments, and values
that do not match an argument's annotation, are found before anything is built.

Errors: ConfigError, which names the key, the value, the file and the line; RunFailed if user code fails while an object
is built.

    nodes       which targets are allowed; checks against signatures
    building    build an object; one line for an error in its class
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.targets.building import (
        TRACEBACK as TRACEBACK,
        construct as construct,
        constructing as constructing,
        of_kind as of_kind,
    )
    from samebits.targets.nodes import (
        build_target as build_target,
        check_nodes as check_nodes,
        check_targets as check_targets,
        complete as complete,
        locate as locate,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
