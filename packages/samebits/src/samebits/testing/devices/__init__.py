"""Devices for tests on a CPU: blocks in which the host must not wait for the device, and hidden GPUs.

    with refused():
        loss.backward()

Input: a block of code, or the steps of runs. Output: the steps that were checked. Errors: Waited, with operation and
line, when the host waits for the device.

    waits     refused, refused_in_steps: raise Waited when the host reads a value from the device
    recorded  RecordedGraph: records and replays a step, instead of a CUDA graph
    gpu       real GPUs, which are hidden from tests of the CPU
"""

from samebits.testing.devices.gpu import gpu_environment, hide_gpus
from samebits.testing.devices.recorded import RecordedGraph
from samebits.testing.devices.waits import ON_A_GPU, Waited, allow_waits, refused, refused_by_the_gpu, refused_in_steps
