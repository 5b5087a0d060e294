"""Not yours: what makes runs fast, exact and restartable. A fork edits nothing here, and takes a newer one as it is.

The engine imports nothing of the project (`lab`): that hands over its schemas and functions once (engine.app).

    config     from the command line to a checked config          runs     a run directory and what lies in it
    ranks      processes, devices, signals                         data     which sample when, and how it is read
    packing    other formats -> HDF5                               sweeps   many runs: ledger, pool, search, reports
"""
