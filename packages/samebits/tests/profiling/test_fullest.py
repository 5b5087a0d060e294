"""The fullest of the ranks' GPUs decides what fits."""

from __future__ import annotations

import pytest
import torch

from samebits.profiling import memory


def test_the_fullest_of_the_ranks_gpus_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    free, shares = [60, 45, 9], []
    monkeypatch.setattr(memory, "count_gpus", lambda: 3)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[device.index], 100))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append(share))
    for ranks in (1, 2, 3):
        memory.limit_memory(torch.device("cuda", 0), ranks)
    assert shares == pytest.approx([memory.USED * each / 100 for each in free])
