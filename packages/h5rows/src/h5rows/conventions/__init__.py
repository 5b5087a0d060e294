"""What the program that wrote a file meant by it, beyond the numbers that lie there. No torch.

kinds      whose file it is: MATLAB's, netCDF's, AnnData's, NeXus's, PyTables', pandas', Keras's
packed     CF: packed numbers, fill values, valid ranges -> values, and where there are none
turned     MATLAB: axes in its own order, samples along its first or last axis
sparse     AnnData: rows of a CSR or CSC matrix
named      AnnData: categories; NeXus: the signal of a group; netCDF, MATLAB: characters -> strings
choice     which fields could be x and y, and the command that trains on them
"""
