"""Devices for tests on a CPU: a simulated GPU, and blocks in which the host must not wait for the device.

Input: objects of a run, or a block of code. Output: copies with fake tensors, or a record of the waits. Errors: Waited,
with operation and line, when the host waits for the device. fake_gpu uses private names of torch 2.11 and later.

    waits     refused, refused_in_steps: raise Waited when the host reads a value from the device
    fake_gpu  fake_gpu: tensors on `cuda` without values; nothing is computed
    recorded  RecordedGraph: records and replays a step, instead of a CUDA graph
    gpu       real GPUs, which are hidden from tests of the CPU
"""

from samebits.testing.devices.fake_gpu import GPU, Watched, fake_gpu
from samebits.testing.devices.gpu import gpu_environment, hide_gpus
from samebits.testing.devices.recorded import RecordedGraph
from samebits.testing.devices.waits import ON_A_GPU, Waited, allow_waits, refused, refused_by_the_gpu, refused_in_steps
