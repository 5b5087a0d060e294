"""What makes runs fast, exact and restartable. A fork does not edit this folder; an update replaces it.

The engine imports nothing of the project (`lab`), which registers its schemas and functions once (engine.app).

    config     from the command line to a checked config          runs     a run directory and what lies in it
    ranks      processes, devices, signals                         data     which sample when, and how it is read
    packing    other formats -> HDF5                               sweeps   many runs: ledger, pool, search, reports
"""
