"""Searches: trials that Optuna draws, run as jobs of a sweep.

distributions.py  one key: a sweep override -> Optuna's distribution
space.py          all keys, in the order in which they depend on each other; a trial's parameters -> overrides
methods.py        sampler and pruner: which ones, and how they are built
objectives.py     keys of result.json that are minimized or maximized
storage.py        the database of the trials
study.py          the next trial's parameters, the outcome of each trial
drive.py          ask, write the run directory, launch, tell
pruning.py        a callback within a trial's run: report each score, ask whether to stop
"""
