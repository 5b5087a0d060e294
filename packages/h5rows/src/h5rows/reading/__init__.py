"""How HDF5 files are opened, found and read.

finding, copies, sources, remote   names and addresses -> files on this machine
opening, external                  a file and its fields, checked; where its bytes lie
layout, fields, filters            what a data set's storage allows: map, offsets of chunks, filters
readers, raw                       rows by mapping, by chunk, by h5py
"""
