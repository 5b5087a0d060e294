"""Query the free memory of a device."""

from __future__ import annotations

import torch

from samebits.host import available_memory


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, or of the host within its container's limit."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else available_memory()
