"""A run is a directory: claimed by one process, filled before the start, resumable from its newest whole checkpoint.

Given: a checked config, the state to save, values to log. Returned: files that any later version reads. A process that
is killed at any moment leaves no half-written file under a final name; a damaged one is never loaded.

    directory, environment    what a run starts from, its status      checkpoint, shards, intact    saved state
    logger, wandb_log, wandb_sync    logged values                    clock, spent    speed, seconds over all processes
    recording    the first failure, recorded before the process group is shut down
"""
