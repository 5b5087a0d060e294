"""The writer, and what is asked of files that are there.

plan, encode, write, pool, file, journal    the writer
repack, inspect, summary                    other layouts, what a file holds
tree, copying, raw_values                   all of an HDF5 file, in another
account                                     what was left out
"""
