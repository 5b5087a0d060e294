"""Which code a run is computed by, and on what: what environment.json and uncommitted.diff keep.

Given: a project's root, a run's directory. Returned: `Surroundings` (versions, commit, diff, machine) for a new run;
the `Code` of a run, now and after each resume, and what differs between two of them.

Promised: the identity of a run's code covers src/ and the libraries, installed or vendored, committed or not. Where git
does not answer, the record has null, and one line says so. Imports no torch.

Raised: CorruptFileError for a record that is not as a run writes it.

    environment    the record of a run      source    src/, packages/, libraries: what identifies them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.code.environment import (
        DIFF,
        ENVIRONMENT,
        Code,
        Surroundings,
        by_code,
        changes_of,
        code_changes,
        code_here,
        code_of,
        codes_of,
        record_machine,
        surroundings,
        use_code,
        version_of,
    )
    from samebits.code.source import (
        code_folders,
        has_own_engine,
        is_vendored,
        libraries_of,
        library_changes,
        python_path,
        source_of,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
