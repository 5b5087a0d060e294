"""Sweeps: many runs under one name, which can be killed, restarted, extended and reported on.

identity.py   a job's identity: its overrides, independent of order and spelling
alike.py      config differences between jobs that were not swept
ledger.py     the sweep's directory: its jobs and their states
plan.py       the command line -> jobs, composed, checked and written before the first starts
threads.py    CPU threads of each job
job.py        one job, in a process of its own, from its directory alone
job_process.py   such a process below the pool: its output file, the record when it dies
lease.py      which GPUs and how many cores a job gets
pool.py       local launcher: several jobs at once on this machine
slurm.py      SLURM launcher: one batch job per job
screen.py     progress display while the sweep runs, the table at its end
drive.py      due jobs -> launcher -> table -> exit status
preflight.py  build every job, run one batch of each shape
"""
