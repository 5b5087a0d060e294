"""A process and its machine: the cores, GPUs and memory that it may use. Knows nothing of ranks, runs and configs.

Given: nothing but the environment (affinity, cgroup, OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES). Imports no torch, and asks
for GPUs without initializing CUDA, so that processes can still be forked afterwards.

Returned: `cores()` is what this process may use, of which `cores_each(n)` and `threads_each(n)` are one of n processes'
shares; `available_memory()` is what it may still take; `start_method()` is fork where that is safe, else spawn.
`bind_to_gpus` puts a process on the cores beside its GPU; `machine_facts` is what environment.json keeps. (These, and
what is asked of one GPU, initialize CUDA.)

Promised: in the block `no_garbage_collection` Python's collector runs where it is called alone.

Raises nothing of its own; OSError where the system refuses.

    cpu, gpu, memory, numa, machine    what there is
    cgroups    within which limits       garbage    Python's collector
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.host.cpu import cores, cores_each, limited_to, omp_num_threads, threads_each
    from samebits.host.garbage import collect_garbage, no_garbage_collection
    from samebits.host.gpu import count_gpus, hide_gpus, memory_of_process, pci_address, start_method
    from samebits.host.machine import gpu_facts, machine_changes, machine_facts, machine_line
    from samebits.host.memory import available_memory, private_memory
    from samebits.host.numa import bind_to_gpus
else:
    __getattr__ = lazy_getattr(__name__, __file__)
