"""Cores, GPUs and memory that this process may use. Independent of ranks, runs and configs.

Input: the environment (affinity, cgroup, OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES). Does not import torch, and counts GPUs
without initializing CUDA, so that processes can still be forked.

Output: `cores()` returns the cores that this process may use; `cores_each(n)` and `threads_each(n)` are the share of
one of n processes. `available_memory()` returns the memory that it may still allocate. `start_method()` is fork if that
is safe, otherwise spawn. `bind_to_gpus` binds a process to the cores of its GPU's NUMA node. `machine_facts` returns
the facts in environment.json. The last two, and functions for one GPU, initialize CUDA.

Guarantee: within `no_garbage_collection`, Python's collector runs only when `collect_garbage` is called.

Errors: OSError for failed system calls.

    cpu, gpu, memory, numa    the resources of the machine
    machine                   facts for environment.json and the log
    cgroups                   limits of containers and schedulers
    energy                    the energy counter of a GPU
    garbage                   Python's garbage collector
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.host.cpu import (
        cgroup_cores as cgroup_cores,
        cores as cores,
        cores_each as cores_each,
        limited_to as limited_to,
        omp_num_threads as omp_num_threads,
        threads_each as threads_each,
    )
    from samebits.host.energy import EnergyCounter as EnergyCounter
    from samebits.host.garbage import collect_garbage as collect_garbage, no_garbage_collection as no_garbage_collection
    from samebits.host.gpu import (
        count_gpus as count_gpus,
        hide_gpus as hide_gpus,
        memory_of_process as memory_of_process,
        pci_address as pci_address,
        start_method as start_method,
    )
    from samebits.host.machine import (
        driver as driver,
        gpu_facts as gpu_facts,
        held_by_others as held_by_others,
        library_versions as library_versions,
        machine_changes as machine_changes,
        machine_facts as machine_facts,
        machine_line as machine_line,
    )
    from samebits.host.memory import (
        available_memory as available_memory,
        memory_limit as memory_limit,
        private_memory as private_memory,
    )
    from samebits.host.numa import bind_to_gpus as bind_to_gpus
else:
    __getattr__ = lazy_getattr(__name__, __file__)
