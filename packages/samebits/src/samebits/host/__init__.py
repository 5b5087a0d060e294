"""One process and its machine: cores, GPUs, signals, parent and child. Knows nothing of ranks, runs and configs.

Given: nothing but the environment (affinity, cgroup, OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES). Imports no torch, and asks
for GPUs without initializing CUDA, so that processes can still be forked afterwards.

Cores and GPUs: `cores()` is what this process may use, of which `cores_each(n)` and `threads_each(n)` are one of n
processes' shares; `available_memory()` is what it may still take; `start_method()` is fork where that is safe, else
spawn. `bind_to_gpus` puts a process on the cores beside its GPU; `machine_facts` is what environment.json keeps.
(These, and what is asked of one GPU, initialize CUDA.)

Signals: STOP_SIGNALS ask a process to stop; in a block they are handled (`handling_signals`) or held back
(`held_signals`); a `temporary_folder` has gone after its block whenever one comes.

Processes: a child that calls `die_with(parent)` ends with its parent, even if that was killed. `Hearts` are
heartbeats in shared memory: the parent finds a child that is stopped, or whose native code holds the GIL, and ends it
(`abort_hung`). `in_a_child` runs one function in a process of its own. A forked child has positions of its own in the
files that it inherits (`own_offsets`).

Garbage: in a block, Python's collector runs where it is called alone.

Programs: `answer_of` is what another program prints, `git` what git prints, whatever its user has set; NoAnswer.

Raises NoAnswer, else nothing of its own; OSError where the system refuses.

    cpu, gpu, memory, numa, machine    what there is       cgroups    within which limits
    parent, heartbeat, child           child processes       signals    stopping
    garbage     its collector          programs   what other programs answer       offsets     positions in open files
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.pages import lazy

if TYPE_CHECKING:
    from samebits.host.child import in_a_child
    from samebits.host.cpu import cores, cores_each, limited_to, omp_num_threads, threads_each
    from samebits.host.garbage import collect_garbage, no_garbage_collection
    from samebits.host.gpu import count_gpus, hide_gpus, memory_of_process, pci_address, start_method
    from samebits.host.heartbeat import (
        Hearts,
        abort_hung,
        beat,
        has_starter,
        note_progress,
        note_step,
        progress_at,
        readable_stack,
        say_ended,
        take_heart,
    )
    from samebits.host.machine import gpu_facts, machine_changes, machine_facts, machine_line
    from samebits.host.memory import available_memory, private_memory
    from samebits.host.numa import bind_to_gpus
    from samebits.host.offsets import Offsets, file_offsets, own_offsets
    from samebits.host.parent import die_with, die_with_starter, end_children_at_exit, process_state
    from samebits.host.programs import GIT_DIFF, NoAnswer, answer_of, git
    from samebits.host.signals import (
        LIKELY_CAUSES,
        SAME_SIGNAL_S,
        STOP_SIGNALS,
        handling_signals,
        heeded_signals,
        held_signals,
        temporary_folder,
    )
else:
    __getattr__ = lazy(__name__, __file__)
