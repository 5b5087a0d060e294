"""What the program that wrote a file meant by it, beyond the numbers that lie there. No torch.

detect     whose file it is: MATLAB's, netCDF's, AnnData's, NeXus's, PyTables', pandas', Keras's
cf         CF: packed numbers, fill values, valid ranges -> values, and where there are none
opening    a named field: MATLAB's axes, AnnData's matrices and categories, NeXus's signals, characters -> strings
derived    fields that are computed: unpacked, transposed, dense rows of a CSR or CSC matrix
choice     which fields could be x and y, and the command that trains on them
"""
