"""Epochs over a set behind a network that is larger than its cache: ours beside what others stream with.

    ./run python benchmarks/remote_blocks.py [folder] [--gigabytes 4] [--row-bytes 150000] [--cache-gb 1] [--epochs 2]
        [--peers mosaicml litdata webdataset]      each is measured where it can be imported
        [--ranks 4]      ours alone: so many processes with one cache, each with its share of each batch
        [--hosts 2]      as root: so many ranks, each a host: a network namespace with a cache and a link of its own

A server on this machine, which answers after 50 ms and shares a link of 100 MB/s among all requests. The set: shards of
256 MB; of ours contiguous uint8 rows in HDF5, of the others their own format, uncompressed, the same bytes. Batches of
256 rows (of 64 above 64 KB), in windows of 16 chunks of 16 MiB, no training. Said of each: seconds from the import to
the first batch, the share of the link in each epoch, bytes that were fetched for each byte that was used, and whether
each row came once; of each batch the first row is compared, byte by byte.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

LINK, DELAY_S, SHARD = 100e6, 0.05, 256 << 20
HOST_LINK, NETWORK = 40e6, "10.231.9."  # bytes/s of each host's link
SERVER = """
import http.server, os, re, sys, threading, time
root, link, delay = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
lock, free, sent, most = threading.Lock(), 0.0, {}, int(min(link / 1500, 8 << 20))
class Slow(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_HEAD(self):
        self.do_GET()
    def do_GET(self):
        global free
        host = self.client_address[0]
        if self.path == "/counts":  # bytes and requests of who asks
            body = b"%d %d" % tuple(sent.get(host, (0, 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        time.sleep(delay)
        try:
            file = open(root + self.path.partition("?")[0], "rb")
        except OSError:
            return self.send_error(404)
        with file:
            size = os.fstat(file.fileno()).st_size
            part = re.fullmatch(r"bytes=(\\d+)-(\\d*)", self.headers.get("Range", ""))
            begin, end = (int(part[1]), min(int(part[2] or size), size - 1)) if part else (0, size - 1)
            self.send_response(206 if part else 200)
            if part:
                self.send_header("Content-Range", f"bytes {begin}-{end}/{size}")
            self.send_header("Content-Length", str(end + 1 - begin))
            self.send_header("ETag", '"1"')
            self.end_headers()
            if self.command == "HEAD":
                return
            with lock:
                counts = sent.setdefault(host, [0, 0])
                counts[1] += 1
            try:
                while begin <= end:
                    count = min(most, end + 1 - begin)
                    with lock:
                        at = max(time.monotonic(), free)
                        free = at + count / link
                        counts[0] += count
                    time.sleep(max(0.0, at - time.monotonic()))
                    begin += os.sendfile(self.wfile.fileno(), file.fileno(), begin, count)
            except OSError:
                pass
    def log_message(self, *words):
        pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size, daemon_threads = 256, True
server = Server(("", 0), Slow)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def row(number: int, size: int, noise: np.ndarray) -> np.ndarray:
    """(size,) uint8: which row it is, and bytes that follow from that."""
    begin = number * 7919 % (len(noise) - size)
    values = noise[begin : begin + size].copy()
    values[:8] = np.frombuffer(np.int64(number).tobytes(), np.uint8)
    return values


def noise_of(size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size + (1 << 20), dtype=np.uint8)


def write(peer: str, folder: Path, rows: int, size: int) -> None:
    folder.mkdir(parents=True)
    noise, per_shard = noise_of(size), max(1, SHARD // size)
    if peer == "ours":
        import h5py

        for k, begin in enumerate(range(0, rows, per_shard)):
            count = min(per_shard, rows - begin)
            with h5py.File(folder / f"{k:05}.h5", "w") as file:
                x = file.create_dataset("x", (count, size), "u1")
                for at in range(0, count, 64):
                    numbers = range(begin + at, begin + min(at + 64, count))
                    x[at : at + len(numbers)] = np.stack([row(number, size, noise) for number in numbers])
    elif peer == "mosaicml":
        from streaming import MDSWriter

        with MDSWriter(out=str(folder / "set"), columns={"x": "bytes"}, size_limit=64 << 20) as out:
            for number in range(rows):
                out.write({"x": row(number, size, noise).tobytes()})
    elif peer == "litdata":
        from litdata.streaming.writer import BinaryWriter

        out = BinaryWriter(str(folder / "set"), chunk_bytes=64 << 20)
        for number in range(rows):
            out[number] = {"x": row(number, size, noise).tobytes()}
        out.done()
        out.merge()
    elif peer == "webdataset":
        import webdataset

        with webdataset.ShardWriter(str(folder / "%05d.tar"), maxsize=SHARD, maxcount=10**9, verbose=0) as out:
            for number in range(rows):
                out.write({"__key__": f"{number:09}", "x": row(number, size, noise).tobytes()})


def batch_size(args: argparse.Namespace) -> int:
    return 256 if args.row_bytes < 1 << 16 else 64


def batches(
    peer: str, url: str, folder: Path, args: argparse.Namespace, epoch: int, made: dict[str, Any]
) -> Iterator[Any]:
    """Batches of rows, (B, row bytes) uint8, of one epoch. made: what the first epoch opened."""
    batch = batch_size(args)
    names = sorted(path.name for path in folder.iterdir())
    if peer == "ours":
        import torch

        from h5rows import Dataset
        from samebits.data import TrainPlan
        from samebits.data.loading.ring import Ring
        from samebits.data.windows import chunk_windows

        if not made:
            made["data"] = data = Dataset([f"{url}/{name}" for name in names], {"x": "x"}, cache_gb=args.cache_gb)
            made["ring"] = Ring(data, torch.device("cpu"), 1)
            order = chunk_windows(data, 0, window=args.window, batch_size=batch, chunk_rows=None)
            made["plan"] = TrainPlan(order, batch, [batch // args.ranks], args.rank, args.ranks, 0)
            parts = made["ring"].stream(made["plan"])
            made["stream"] = (batch for part in parts for batch, _ in reversed(part))
        for _ in range(len(made["data"]) // batch):
            yield next(made["stream"])["x"].numpy()
    elif peer in ("mosaicml", "litdata"):
        if not made:
            made["loader"] = PEERS[peer](url, batch, args)
        yield from map(stacked, made["loader"])
    elif peer == "webdataset":
        import webdataset
        from torch.utils.data import DataLoader

        urls = [f"pipe:curl -s {url}/{name}" for name in names]
        held = 256 * (1 << 20) // args.row_bytes // 2
        data = webdataset.WebDataset(urls, shardshuffle=len(urls), empty_check=False, seed=epoch).shuffle(
            held, initial=batch
        )
        yield from map(stacked, DataLoader(data, batch, num_workers=2, collate_fn=list))


def mosaicml(url: str, batch: int, args: argparse.Namespace) -> Any:
    """Through its own S3 client, whose endpoint is the server."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    data = StreamingDataset(
        remote="s3://mosaicml/set", local=tempfile.mkdtemp(dir=args.folder), shuffle=True, batch_size=batch,
        cache_limit=int(args.cache_gb * 1e9), shuffle_block_size=(256 << 20) // args.row_bytes,
    )  # fmt: skip
    return DataLoader(data, batch, num_workers=1, collate_fn=list, persistent_workers=True)


def litdata(url: str, batch: int, args: argparse.Namespace) -> Any:
    from litdata import StreamingDataLoader, StreamingDataset

    options = {"endpoint_url": url.rpartition("/")[0]}
    data = StreamingDataset(
        "s3://litdata/set", cache_dir=tempfile.mkdtemp(dir=args.folder), shuffle=True, storage_options=options,
        max_cache_size=f"{args.cache_gb}GB", max_pre_download=4,
    )  # fmt: skip
    return StreamingDataLoader(data, batch_size=batch, num_workers=2, collate_fn=list)


PEERS = {"mosaicml": mosaicml, "litdata": litdata}


def stacked(samples: list[dict[str, bytes]]) -> np.ndarray:
    return np.stack([np.frombuffer(sample["x"], np.uint8) for sample in samples])


def measure(peer: str, url: str, folder: Path, args: argparse.Namespace) -> None:
    """In a process of its own; prints one line of JSON."""
    noise, made = noise_of(args.row_bytes), {}
    ours = ("samebits.data.loading.ring", "samebits.data.windows", "h5rows.dataset", "h5rows.reading.ranges")
    for name in {"ours": ours, "mosaicml": ("streaming",)}.get(peer, (peer,)):
        import_module(name)
    told: dict[str, Any] = {"peer": peer, "share": [], "fetched": []}
    os.environ |= {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "pw", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ["S3_ENDPOINT_URL"] = url.rpartition("/")[0]
    before, began = sent(url), time.perf_counter()
    for epoch in range(args.epochs):
        start, seen, wrong = time.perf_counter(), [], 0
        for batch in batches(peer, url, folder, args, epoch, made):
            meet(args)
            told.setdefault("first", time.perf_counter() - began)
            numbers = np.ascontiguousarray(batch[:, :8]).view(np.int64)[:, 0]
            seen.append(numbers)
            wrong += not np.array_equal(batch[0], row(int(numbers[0]), args.row_bytes, noise))
        seconds, used, now = time.perf_counter() - start, sum(map(len, seen)) * args.row_bytes, sent(url)
        told["share"].append(round(used / seconds / (HOST_LINK if args.hosts else LINK), 3))
        told["fetched"].append(round((now - before) / used, 3))
        rows = np.concatenate(seen)
        told["rows"], told["twice"] = len(rows), len(rows) - len(np.unique(rows))
        told["wrong"], before = wrong, now
        if args.ranks > 1:
            told.setdefault("seconds", []).append(seconds)
            np.save(Path(args.folder) / f"rows-{args.rank}-{epoch}.npy", rows)
    print(json.dumps(told), flush=True)
    os._exit(0)


def meet(args: argparse.Namespace) -> None:
    """As the ranks of a training do at each step."""
    if args.ranks > 1:
        import torch.distributed as dist

        if not dist.is_initialized():
            store = f"file://{args.folder}/meeting-{os.getppid()}"
            dist.init_process_group("gloo", init_method=store, rank=args.rank, world_size=args.ranks)
        dist.barrier()


def of_ranks(
    command: list[str], environment: dict[str, str], url: str, args: argparse.Namespace, within: list[list[str]]
) -> dict[str, Any]:
    """What the processes have seen together: the slowest one's seconds, rows that several had, bytes fetched in all; of
    hosts each one's."""
    hosts = len(within)
    before, size = 0 if hosts else sent(url), str(args.ranks)
    ranks = [
        subprocess.Popen(
            [*(within[k] if hosts else ()), *command, "--ranks", size, "--rank", str(k)],
            stdout=subprocess.PIPE, text=True,
            env={
                **environment, "RANK": str(k), "LOCAL_RANK": "0" if hosts else str(k), "WORLD_SIZE": size,
                "LOCAL_WORLD_SIZE": "1" if hosts else size,
                "LAB_CACHE_DIR": f"{args.folder}/cache{k if hosts else ''}",
                **({"GLOO_SOCKET_IFNAME": "eth0"} if hosts else {}),
            },
        )
        for k in range(args.ranks)
    ]  # fmt: skip
    told = [json.loads(process.communicate()[0]) for process in ranks]
    used, found = 0, {"ranks": args.ranks, "first": max(one["first"] for one in told), "share": [], "twice": []}
    for epoch in range(args.epochs):
        rows = np.concatenate([np.load(Path(args.folder) / f"rows-{k}-{epoch}.npy") for k in range(args.ranks)])
        own, seconds = len(rows) * args.row_bytes, max(one["seconds"][epoch] for one in told)
        used += own
        found["share"].append(round(own / seconds / LINK, 3))
        found["twice"].append(len(rows) - len(np.unique(rows)))
    found["wrong"] = sum(one["wrong"] for one in told)
    if hosts:
        return {**found, "share": [one["share"] for one in told], "fetched": [one["fetched"] for one in told]}
    return {**found, "fetched": round((sent(url) - before) / used, 3)}


@contextmanager
def network(hosts: int) -> Iterator[list[list[str]]]:
    """Network namespaces: one with a bridge, for the server, and one of each host, whose link is limited there. Yields
    the beginnings of commands that run in them, the server's first."""
    if not hosts:
        yield [[]]
        return
    server, *others = names = [f"remote{os.getpid()}-{k}" for k in range(hosts + 1)]

    def run(line: str) -> None:
        subprocess.run(line.split(), check=True)

    try:
        for k, name in enumerate(names):
            run(f"ip netns add {name}")
            run(f"ip -n {name} link set lo up")
            if name == server:
                run(f"ip -n {server} link add eth0 type bridge")
            else:
                run(f"ip link add port{k} netns {server} type veth peer name eth0 netns {name}")
                run(f"ip -n {server} link set port{k} master eth0 up")
                limit = f"rate {8 * HOST_LINK:.0f}bit burst 256kb latency 100ms"
                run(f"ip netns exec {server} tc qdisc add dev port{k} root tbf {limit}")
            run(f"ip -n {name} addr add {NETWORK}{k + 1}/24 dev eth0")
            run(f"ip -n {name} link set eth0 up")
        uts = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']
        yield [["ip", "netns", "exec", server], *(["ip", "netns", "exec", name, *uts, name] for name in others)]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


def sent(url: str) -> int:
    with urlopen(f"{url.rpartition('/')[0]}/counts") as answer:
        return int(answer.read().split()[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default=tempfile.gettempdir())
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--row-bytes", type=int, default=150_000)
    parser.add_argument("--cache-gb", type=float, default=1)
    parser.add_argument("--window", type=int)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--peers", nargs="*", default=[])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=0)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        peer, url, folder = args.measure
        args.folder = str(Path(folder).parent)
        measure(peer, url, Path(folder), args)
    args.ranks = args.hosts or args.ranks
    root, server = Path(tempfile.mkdtemp(dir=args.folder)), None
    args.folder = str(root)
    batch, link = batch_size(args), 1e12 if args.hosts else LINK
    # whole batches: ours goes on with what is left of an epoch in the next one, where those rows would count as twice
    rows = int(args.gigabytes * 1e9) // args.row_bytes // batch * batch
    try:
        with network(args.hosts) as (at_server, *within):
            for peer in ("ours", *args.peers):
                write(peer, root / peer, rows, args.row_bytes)
                command = [*at_server, sys.executable, "-c", SERVER, str(root), str(link), str(DELAY_S)]
                server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                assert server.stdout is not None
                address = f"{NETWORK}1" if args.hosts else "127.0.0.1"
                url = f"http://{address}:{server.stdout.readline().strip()}/{peer}"
                command = [sys.executable, __file__, "--measure", peer, url, str(root / peer), *sys.argv[1:]]
                environment = {**os.environ, "LAB_CACHE_DIR": str(root / "cache")}
                if args.ranks == 1:
                    subprocess.run(command, env=environment, check=True)
                else:
                    print(json.dumps(of_ranks(command, environment, url, args, within)), flush=True)
                server.kill()
    finally:
        if server is not None:
            server.kill()
            server.wait()
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
