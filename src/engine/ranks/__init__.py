"""Processes and devices: how ranks start, find each other, stay in step, and end. (Importing it imports no torch.)

Given: the groups `hardware` and `trainer` (options.py) and a function to run in each rank. Promised: equal shares,
the same decisions on all ranks, one true line when one fails, nothing left running.

    cluster, rendezvous, launch, distributed    who is who, starting them, what they tell each other (wire: as JSON)
    ddp, fsdp, blocks, data_parallel       the strategies
    hardware, cores, threads, cuda, seed, dynamo    what this machine has, and settings that follow from it
    stop, watch, guard, heartbeat, parent  signals, hangs, ends      balance    who is slow, who holds more memory
    terminal    which rank a debugger's prompt talks to              options    what a user may set
"""
