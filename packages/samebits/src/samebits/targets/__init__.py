"""Nodes with a `_target_`: which of them may be built, and building them. Imports no torch.

Given: the project (samebits.project), whose packages and classes are allowed, and nodes, plain or of OmegaConf, with
their key in the config. Returned: the object that a node names, or the node with the defaults of its class's signature.

Promised: only what the project allows is imported; a check builds nothing. An argument that a class does not have, or
whose value does not fit its annotation, is found before anything is built.

Raised: ConfigError, which names key, value, file and line; RunFailed where user code fails while it is built.

    nodes       what may be built, checked against signatures
    building    building it; an error in a class as one line
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.targets.building import TRACEBACK, construct, constructing, of_kind
    from samebits.targets.nodes import build_target, check_nodes, check_targets, complete, locate
else:
    __getattr__ = lazy_getattr(__name__, __file__)
