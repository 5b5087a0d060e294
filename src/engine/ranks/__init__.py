"""Processes and devices: how ranks start, find each other, stay in step, and end. (Importing it imports no torch.)

Given: the groups `hardware` and `trainer` (options.py) and a function to run in each rank. Promised: ranks get equal
shares of each batch and take the same decisions; a failure is reported in one line with its cause; no process stays.

    cluster, rendezvous     ranks and hosts from environment variables; agreeing on the run directory
    launch, distributed     starting ranks; process group and collectives (wire: their values as JSON)
    ddp, fsdp, blocks, data_parallel       the strategies
    hardware, cores, threads, cuda, seed, dynamo    what this machine has, and settings that follow from it
    stop, watch, guard, heartbeat, parent  signals, hang watchdog, ending processes
    balance     stragglers and peak memory        terminal    breakpoints in ranks        options    what a user may set
"""
