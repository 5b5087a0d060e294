"""Which sample when, how a file is read at the speed of memory, how batches reach the loop.

Given: a data set (`__len__` and `__getitem__`, or `gather`), the seed. Promised: the global batch of a step depends on
the seed and the step alone, for any number of ranks, workers and micro-batches; the bytes are h5py's.

    order, sampling, windows, permutation    row numbers      h5, reading/    HDF5      loader, loading/    batches
    counter    random numbers by sample      probe            what a file holds, before anything is built
"""
