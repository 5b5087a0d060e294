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
        DIFF as DIFF,
        ENVIRONMENT as ENVIRONMENT,
        Code as Code,
        Surroundings as Surroundings,
        by_code as by_code,
        changes_of as changes_of,
        code_changes as code_changes,
        code_here as code_here,
        code_of as code_of,
        codes_of as codes_of,
        ranges as ranges,
        record_machine as record_machine,
        surroundings as surroundings,
        use_code as use_code,
        version_of as version_of,
    )
    from samebits.code.source import (
        code_folders as code_folders,
        has_own_engine as has_own_engine,
        is_vendored as is_vendored,
        libraries_of as libraries_of,
        library_changes as library_changes,
        python_path as python_path,
        source_of as source_of,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
