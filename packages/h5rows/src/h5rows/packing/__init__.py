"""Write, copy and inspect HDF5 files.

Input: a `Source` (see importers/), samples in memory, or an HDF5 file. Output: an HDF5 file, a set of shards, or
printed lines, and an account of what was left out. Guarantees: a file gets its final name only when it is complete and
was read back; after a kill no partial result remains under that name. Errors: ConfigError, which names the file, the
field or the sample.

plan, write, pool, file     the writer: which rows go where, the workers, the file
samples                     samples in memory as a source
shards                      a set of shards and its index, in a folder or at a URL
repack, scan                another layout for an existing file
survey, copying, values     copy and compare all objects of an HDF5 file
inspect                     print how a file is laid out and read
"""
