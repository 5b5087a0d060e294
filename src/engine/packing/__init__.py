"""Other formats -> HDF5, each value kept or refused by name.

Given: a source and options (options.py), by `src/h5.py`. Returned: one file, whole or not at all; a pack that was
killed goes on. Imports nothing of ranks and runs.

    importers/    a reader for each format      plan, encode, write, pool, file, journal    the writer
    repack, inspect, summary                    other layouts, what a file holds
"""
