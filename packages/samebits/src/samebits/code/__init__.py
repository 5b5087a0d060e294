"""Record which code computes a run and on which machine, in environment.json and uncommitted.diff. Does not import
torch.

Input: a project's root, a run's directory. Output: `Surroundings` (versions, commit, diff, machine) for a new run; the
`Code` of a run, now and after each resume; the differences between two of them.

Guarantees: a run's code includes src/ and the libraries, installed or vendored, committed or not. If git does not
answer, the record contains null, and a line is logged.

Errors: CorruptFileError for a record with an invalid form.

    environment    the record of a run
    source         the files that identify the code: src/, packages/, libraries
"""

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
        ranges,
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
