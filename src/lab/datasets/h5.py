"""Rows of HDF5 files: h5rows.Dataset, with errors of h5rows converted to ConfigError and RunFailed."""

import h5rows
from lab.h5_errors import h5_methods


@h5_methods
class Dataset(h5rows.Dataset):
    __doc__ = h5rows.Dataset.__doc__
