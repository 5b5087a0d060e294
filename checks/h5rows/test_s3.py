"""A set in a bucket, judged by an S3 server that is not ours. Skipped without it, as `dev` has it not:

./run pip install -e '.[remote]' 'moto[s3]' flask flask-cors      (moto[server] brings an antlr that Hydra cannot use)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from common import QUICK
from http_files import forget_files, small_blocks

from h5rows import ConfigError, Dataset, pack
from samebits.testing import assert_equal, last_checkpoint, result, start_run

moto = pytest.importorskip("moto.server", reason="needs moto[s3], flask and flask-cors")
s3fs = pytest.importorskip("s3fs", reason="needs s3fs")
boto3 = pytest.importorskip("boto3")
INDEX, WAYS = "s3://bucket/set/index.json", ({}, {"cache_gb": 1.0})
KILLED = """
import os, signal, sys
from h5rows import pack
from h5rows.packing import shards
send = shards.Place.send
def killed(self, file, name):
    send(self, file, name)
    if name.startswith("00004"):
        os.kill(os.getpid(), signal.SIGKILL)
shards.Place.send = killed
pack(sys.argv[1], "s3://bucket/set", shards=3, append=True)
"""


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """boto3's client of a server with one bucket, and so small blocks that a small file has many."""
    small_blocks(monkeypatch)
    monkeypatch.setenv("LAB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        environment = {"ENDPOINT_URL": f"http://{host}:{port}", "DEFAULT_REGION": "us-east-1", "ACCESS_KEY_ID": "me"}
        for name, value in {**environment, "SECRET_ACCESS_KEY": "pw", "EC2_METADATA_DISABLED": "true"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        forget()
        client = boto3.client("s3")
        client.create_bucket(Bucket="bucket")
        yield client
        guard(client, "inf")
        urlopen(Request(f"{client.meta.endpoint_url}/moto-api/reset", method="POST"))
    finally:
        server.stop()
        s3fs.S3FileSystem.clear_instance_cache()


def forget() -> None:
    """As a new process knows nothing."""
    forget_files()
    s3fs.S3FileSystem.clear_instance_cache()


def guard(client: Any, requests: str) -> None:
    """Names and passwords count after so many requests."""
    url = f"{client.meta.endpoint_url}/moto-api/reset-auth"
    urlopen(Request(url, requests.encode(), {"Content-Type": "text/plain"}, method="POST"))


def source(folder: Path, name: str, first: int, count: int) -> str:
    """Rows that are unlike each other."""
    x = np.random.default_rng(first).integers(0, 256, (count, 300), dtype=np.uint8)
    np.savez(folder / f"{name}.npz", x=x, y=np.arange(first, first + count) % 5)
    return str(folder / f"{name}.npz")


def values(path: str, **more: Any) -> dict[str, Any]:
    forget()
    data = Dataset(path, {"x": "x", "y": "y"}, **more)
    return data.gather(np.arange(len(data)), None)


def test_a_bucket_s_set_is_the_local_one(tmp_path: Path, bucket: Any) -> None:
    """Packed, killed while it was added to, added to, read whole and by blocks, trained on."""
    a, b = source(tmp_path, "a", 0, 300), source(tmp_path, "b", 1000, 90)
    pack(a, str(tmp_path / "near"), shards=3)
    pack(a, "s3://bucket/set", shards=3)
    before = values(str(tmp_path / "near/index.json"))
    assert subprocess.run([sys.executable, "-c", KILLED, b]).returncode == -signal.SIGKILL
    for more in WAYS:
        assert_equal(values(INDEX, **more), before)
    for place in (str(tmp_path / "near"), "s3://bucket/set"):
        pack(b, place, shards=3, append=True)
    for more in WAYS:
        assert_equal(values(INDEX, **more), values(str(tmp_path / "near/index.json")))
    quick = (
        *QUICK, "data.fields={x: x, y: y}", "data.splits.test=null", "data.num_outputs=5",
        "data.splits.train={group: /, rows: [0, 0.8]}", "data.splits.val={group: /, rows: [0.8, 1]}",
        "trainer.global_batch_size=8", "trainer.max_steps=4", "model.hidden=[8]",
    )  # fmt: skip
    near = last_checkpoint(start_run(tmp_path / "run", *quick, f"data.path={tmp_path}/near/index.json"))
    for name, more in {"whole": (), "blocks": ("data.cache_gb=1",)}.items():
        forget()
        run = start_run(tmp_path / name, *quick, f"data.path={INDEX}", *more)
        assert_equal(last_checkpoint(run)["model"], near["model"])
        assert result(run)["step"] == 4


def test_each_mistake_is_one_line(tmp_path: Path, bucket: Any) -> None:
    given = source(tmp_path, "a", 0, 300)
    pack(given, "s3://bucket/set", shards=3)
    shard = json.loads(bucket.get_object(Bucket="bucket", Key="set/index.json")["Body"].read())["shards"][1]["file"]
    body = bucket.get_object(Bucket="bucket", Key=f"set/{shard}")["Body"].read()

    def refused(*words: str) -> Any:
        return pytest.raises(ConfigError, match=r"^[^\n]*" + r"[^\n]*".join(words) + r"[^\n]*$")

    with refused("s3://nowhere/set: nowhere does not exist; check the name, or create it first"):
        pack(given, "s3://nowhere/set", shards=1)
    assert [one["Name"] for one in bucket.list_buckets()["Buckets"]] == ["bucket"]  # none was made
    for more in WAYS:
        for name in ("nowhere/set", "bucket/sett"):
            with refused(f"s3://{name}/index.json: no such file, or no such bucket"):
                values(f"s3://{name}/index.json", **more)
        with refused("s3://No_Bucket!/index.json: Parameter validation failed: Invalid bucket name"):
            values("s3://No_Bucket!/index.json", **more)
        forget()
        data = Dataset(INDEX, {"x": "x"}, **more)
        bucket.delete_object(Bucket="bucket", Key=f"set/{shard}")
        if more:
            with refused(f"s3://bucket/set/{shard}: no such file"):
                data.gather(np.arange(300), None)
        with refused(f"s3://bucket/set/{shard}: no such file", "the set's index lists it: restore it, or pack"):
            values(INDEX, **more)
        bucket.put_object(Bucket="bucket", Key=f"set/{shard}", Body=body + b"x")
        with refused(shard, f"has {len(body) + 1:,} bytes, expected {len(body):,} by the set's index"):
            values(INDEX, **more)
        bucket.put_object(Bucket="bucket", Key=f"set/{shard}", Body=body)
        forget()
        data, other = Dataset(INDEX, {"x": "x"}, **more), bytes([*body[:-1], body[-1] ^ 1])
        bucket.put_object(Bucket="bucket", Key=f"set/{shard}", Body=other)
        if more:
            with refused(shard, "was changed while it was downloaded; start the run again"):
                data.gather(np.arange(300), None)
        else:
            with refused(shard, r"the download differs from the packed file \(SHA-256 in the set's index\)"):
                values(INDEX)
        bucket.put_object(Bucket="bucket", Key=f"set/{shard}", Body=body)
    guard(bucket, "0")
    for more in WAYS:
        with refused(r"set/index\.json: Forbidden; for s3://, set AWS_ACCESS_KEY_ID and .*credentials"):
            values(INDEX, **more)
    with refused(r"s3://bucket/set: Forbidden; for s3://, .*credentials; the set was not changed"):
        pack(given, "s3://bucket/set", shards=1, append=True)


def test_no_login_at_all(tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"Unable to locate credentials; for s3://, set AWS_ACCESS.*tried 3 times"):
        values(INDEX)
