"""Open HDF5 files, find their fields, and read rows of them.

Input: paths, patterns, URLs or indexes of shards; the name of a field. Output: open files, and fields with rows by
number.

Guarantees: rows have the bytes that h5py reads. A storage layout that is not known for certain is read by h5py. A file
that changes while it is open is an error.

Errors: ConfigError with the file, the dataset and the remedy.

    opening, external      open files with checks; links and datasets that lead to other files
    finding                find a dataset by its path
    stored                 files and datasets that read each of their properties once
    listed, folders        the index of a sharded set; the folder of remote files on this machine
    copies, remote         local copies of remote files; downloading them
    ranges, sources        remote files by blocks; the servers and buckets
    layout                 choose how to read a dataset, from its storage layout
    fields                 a field: which reader it needs, and its samples as arrays
    similar                the fields of a file that is like an earlier one of its set
    readers, raw           read rows by mapping, by chunk, by h5py; files by offset, cache of chunks
    filters, texts         decode chunks; decode strings
    shared                 read a column once for all splits
    memory                 compare declared sizes with the free memory
"""
