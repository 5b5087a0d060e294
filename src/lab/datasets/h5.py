"""Rows of HDF5 files: h5rows.Dataset, whose mistakes in a run end in one line as all others do."""

import h5rows
from lab.h5_errors import h5_methods


@h5_methods
class Dataset(h5rows.Dataset):
    __doc__ = h5rows.Dataset.__doc__
