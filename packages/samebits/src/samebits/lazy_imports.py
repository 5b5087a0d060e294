"""Import the public names of packages lazily: the first use of a name imports its module (PEP 562), so that importing a
package is fast.

A package's `__init__.py` lists its public names once, as imports `from MODULE import NAME as NAME` under TYPE_CHECKING.
Type checkers and editors read them; they take a name that is imported without `as` as private (PEP 484). `lazy_getattr`
reads the same lines.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

RENAMED = {  # {package: {public name before 0.3.0: name now}}; to be removed in 0.4
    "samebits.checkpoints": {
        "laid_out": "reshard_like", "weights_of": "eval_state_dict", "load_intact": "load_verified",
        "some_keys": "format_keys", "unmapped": "copy_from_mmap",
    },
    "samebits.children": {
        "Hearts": "Heartbeats", "take_heart": "register_heartbeat", "in_a_child": "run_in_subprocess",
        "say_ended": "mark_finished",
    },
    "samebits.config": {"handed_out_again": "is_agent_retry"},
    "samebits.data": {"Draws": "SampleRNG", "check_alike": "check_same_data", "hand_over": "drain"},
    "samebits.device": {
        "as_run_began": "resolve_auto_as_recorded", "began_precision": "recorded_precision",
        "order_as_weights": "match_memory_format",
    },
    "samebits.errors": {
        "Damaged": "CorruptFileError", "Claimed": "DirectoryLockedError", "arguments_of_now": "translate_arguments",
    },
    "samebits.loggers": {"begin_beside": "start_run_in_group"},
    "samebits.parallel": {"build_weightless": "build_on_meta", "Balance": "RankTiming"},
    "samebits.process": {"unheeded": "options_without_effect", "Rank": "RankProcess"},
    "samebits.profiling": {
        "allowed": "allow_waits", "waits_noticed": "observe_waits", "writes_noticed": "observe_writes",
        "Work": "SampleCost", "work_of": "cost_of_sample",
    },
    "samebits.saved": {
        "enter": "check_run_dir", "override_of_now": "translate_override", "typed_of_now": "translate_typed_override",
    },
    "samebits.shards": {"is_part": "is_dtensor", "Replicas": "ReplicaChecks"},
    "samebits.status": {"onward": "resume_hint"},
    "samebits.steps": {
        "StepNumbers": "StepRNG", "unless": "restore_if", "put_back_buffers": "restore_buffers_if",
        "draw_nothing": "uses_no_rng", "says_no_draws": "declares_no_rng",
        "rng_row": "rng_bytes", "set_rng_row": "set_rng_bytes",
    },
    "samebits.testing": {"Promises": "TaskTests"},
    "samebits.world": {
        "Watch": "HangWatchdog", "on_host": "to_cpu", "place": "dist_env", "meeting": "run_rendezvous",
        "recording": "recording_failures", "Ranks": "RankLauncher",
    },
}  # fmt: skip


def lazy_getattr(package: str, file: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose source is `file`. It raises ImportError for a renamed name."""
    module_of = names_of(Path(file))
    missing = renamed_getattr(package, f"{file} lists its public names")

    def find(name: str) -> Any:
        return getattr(import_module(module_of[name]), name) if name in module_of else missing(name)

    return find


def renamed_getattr(module: str, hint: str = "") -> Callable[[str], Any]:
    """Return the `__getattr__` of a module. It raises ImportError with the new name for a renamed name, and
    AttributeError with the hint for other names."""

    def refuse(name: str) -> Any:
        if new := RENAMED.get(module, {}).get(name):
            raise ImportError(f"{module}.{name} was renamed in samebits 0.3: import {new}", name=module)
        raise AttributeError(f"module {module!r} has no public name {name!r}{hint and f'; {hint}'}")

    return refuse


def names_of(page: Path) -> dict[str, str]:
    """Return {name: module} of the imports under `if TYPE_CHECKING:` in a package's `__init__.py`. Raise ValueError if
    anything else is there."""
    found: dict[str, str] = {}
    for block in ast.parse(page.read_text(encoding="utf-8")).body:
        if not isinstance(block, ast.If) or ast.unparse(block.test) != "TYPE_CHECKING":
            continue
        for node in block.body:
            if not isinstance(node, ast.ImportFrom) or any(alias.asname != alias.name for alias in node.names):
                raise ValueError(f"{page}, line {node.lineno}: expected only `from MODULE import NAME as NAME`")
            found |= {alias.name: str(node.module) for alias in node.names}
    return found
