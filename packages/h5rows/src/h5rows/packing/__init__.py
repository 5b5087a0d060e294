"""The writer, and what is asked of files that are there.

plan, write, pool, file                     the writer
repack, scan                                other layouts
survey, copying, values                     all of an HDF5 file, in another
inspect                                     what a file holds
"""
