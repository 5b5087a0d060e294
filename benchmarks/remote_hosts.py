"""Bytes that a host of many fetches for each that it uses, of a remote set in windows: the real order, simulated.

    ./run python benchmarks/remote_hosts.py

A set of 2 TB, 512 rows a host and step, of some windows; blocks as h5rows.reading.ranges has them. Each host is
taken to fetch a block once in a window. Requests: of a MiB, where each host reads 1 GB/s.
"""

from __future__ import annotations

import numpy as np

from h5rows.reading.ranges import BLOCK, RUN, SEGMENT
from samebits.data.windows import ChunkWindows

TOTAL, PER_HOST, LOOKED_AT = 2 * 10**12, 512, 4


def fetched(row_bytes: int, hosts: int, window: int) -> float:
    """Bytes fetched / bytes used, the mean of some hosts."""
    chunk, batch = SEGMENT // row_bytes, hosts * PER_HOST
    order = ChunkWindows(TOTAL // row_bytes, chunk, window, batch, 0)
    first = 2 * window * chunk
    last = first + window * chunk * -(-2 * batch // (window * chunk))  # whole windows
    batches = np.arange(first // batch, -(-last // batch))
    shares = []
    for host in range(0, hosts, -(-hosts // LOOKED_AT)):
        numbers = (batches[:, None] * batch + host * PER_HOST + np.arange(PER_HOST)).ravel()
        numbers = numbers[(numbers >= first) & (numbers < last)]
        at = order(numbers) * row_bytes
        begin, end = at // BLOCK, (at + row_bytes - 1) // BLOCK
        blocks = np.unique(np.concatenate([np.minimum(begin + k, end) for k in range(int((end - begin).max()) + 1)]))
        shares.append(len(blocks) * BLOCK / (len(numbers) * row_bytes))
    return float(np.mean(shares))


def main() -> None:
    print("rows of   hosts  fetched/used: window 16   window 16 x hosts   requests/s of all hosts")
    for row_bytes in (150_000, 3_000):
        for hosts in (1, 8, 64, 1000):
            usual, wide = fetched(row_bytes, hosts, 16), fetched(row_bytes, hosts, 16 * hosts)
            print(f"{row_bytes:7} {hosts:7} {usual:24.2f} {wide:19.2f} {wide * hosts * 1e9 / RUN:25,.0f}")


if __name__ == "__main__":
    main()
