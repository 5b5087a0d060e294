"""Devices for tests on a CPU: a GPU that is not there, and blocks in which the host may not wait for the device.

Given: what a run builds, or a block of code. Returned: the same with fake tensors, or what the block has asked for.
Raised: Waited, which names the operation and its line, where the host waits for the device. fake_gpu uses names
of torch that are private, of torch 2.11 and later.

    waits     refused, refused_in_steps: raise Waited where the host asks the device for a value
    fake_gpu  fake_gpu: tensors on `cuda` without values; nothing is computed
    recorded  RecordedGraph: a step that is recorded and run again, in the place of a CUDA graph
    gpu       GPUs that are there: hidden from tests of the CPU
"""

from samebits.testing.devices.fake_gpu import GPU, Watched, fake_gpu
from samebits.testing.devices.gpu import gpu_environment, hide_gpus
from samebits.testing.devices.recorded import RecordedGraph
from samebits.testing.devices.waits import ON_A_GPU, Waited, allow_waits, refused, refused_by_the_gpu, refused_in_steps
