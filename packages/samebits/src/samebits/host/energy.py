"""Read the energy counter of an NVIDIA GPU from its driver (NVML), without another library. Does not import torch."""

from __future__ import annotations

import ctypes

LIBRARY = "libnvidia-ml.so.1"  # installed by the driver
MEANING = {1: "not initialized", 2: "an invalid argument", 3: "not supported by this GPU (before Volta, or MIG)",
           4: "no permission", 6: "not found", 15: "the GPU is lost"}  # fmt: skip


class EnergyCounter:
    """The energy that a GPU has used since its driver was loaded, for all of its processes. uuid: as torch and
    nvidia-smi print it. Raise OSError if the driver does not measure it."""

    def __init__(self, uuid: str) -> None:
        self._nvml = ctypes.CDLL(LIBRARY)
        self._check(self._nvml.nvmlInit_v2())
        self._gpu = ctypes.c_void_p()
        name = ctypes.c_char_p(f"GPU-{uuid.removeprefix('GPU-')}".encode())
        self._check(self._nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._gpu)))
        self.joules()

    def joules(self) -> float:
        """Return the energy in joules. The counter advances about every 20 ms or slower."""
        found = ctypes.c_ulonglong()
        self._check(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu, ctypes.byref(found)))
        return found.value / 1000

    def _check(self, status: int) -> None:
        if status:
            raise OSError(f"{LIBRARY}: error {status}, {MEANING.get(status, 'see nvmlReturn_t in its manual')}")
