"""Hyperparameter search: Optuna draws trials, which run as jobs of a sweep.

distributions  one key: a sweep override -> Optuna's distribution
space          all keys, ordered by their dependencies; parameters of a trial -> overrides
methods        the allowed samplers and pruners, and how they are built
objectives     keys of result.json that are minimized or maximized
storage        the database of the trials
study          parameters of the next trial, the outcome of each trial
drive          draw a trial, write its run directory, launch it, report its scores
pruning        a callback in a trial's run: report each score, stop if Optuna prunes
"""
