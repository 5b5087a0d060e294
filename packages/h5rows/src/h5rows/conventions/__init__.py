"""Decode fields by the conventions of the program that wrote the file, such as packed numbers or categories. No torch.

Input: an open file and names of fields. Output: fields with decoded values and names of classes; suggestions for the
fields x and y.

Guarantees: a field that follows no known convention is returned as stored.

Errors: ConfigError if a field cannot be decoded.

    detect     which program wrote the file: MATLAB, netCDF, AnnData, loom, NeXus, PyTables, ...
    cf         CF: packed numbers, fill values, valid ranges -> values, and which are missing
    opening    a named field: MATLAB's axes, AnnData's matrices and categories, NeXus's signals, characters -> strings
    described  the fields of all files of a set, each file opened once
    derived    computed fields: unpacked, transposed, dense rows of a CSR or CSC matrix
    choice     suggest the fields x and y, and the task
"""
