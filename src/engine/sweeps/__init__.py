"""Sweeps: many runs under one name, that can be killed, started again, extended and read.

identity.py   what tells two jobs apart: their overrides, in whatever order and spelling
ledger.py     the sweep's directory: which jobs there are, and in which state
plan.py       the command line -> jobs, composed, checked and written before the first starts
job.py        one job, in a process of its own, from its directory alone
apart.py      what such a process needs: its output's file, what to write when it dies
lease.py      which GPUs and how many cores a job gets
pool.py       several jobs at once on this machine
slurm.py      each job a batch job of SLURM
screen.py     the sweep at a glance while it runs, the table at its end
drive.py      due jobs -> launcher -> table -> exit status
preflight.py  build every job, run one batch of each shape
"""
