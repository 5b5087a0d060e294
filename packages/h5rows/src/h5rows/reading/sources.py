"""Where the bytes of a remote file come from: a web server, or whatever fsspec knows (s3://). No torch, no h5py.

What may go well another time is raised as Failed, for the caller to try again; all else is a ConfigError of one line.
"""

from __future__ import annotations

import base64
import http.client
import netrc
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, takewhile
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit

from h5rows.errors import ConfigError, first_line, on_one_line, pip_install
from h5rows.reading.folders import shown

T = TypeVar("T")
PIECE = 1 << 20  # bytes
TIMEOUT_S, TRIES, PAUSE_S = 30.0, 3, 0.5
LEAST = 64 << 10  # bytes of an answer in TIMEOUT_S; else it is asked for again, as one connection may be stuck
MOST_S = 240.0  # no try begins later: a run ends before it is taken for hung
LOGIN = "; of s3://, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or ~/.aws/credentials say who asks"
MEANS = {401: "; ~/.netrc may hold a name and a password", 416: "; it is empty"}
STAMPS = (  # keys of info() that tell a file from one of the same size: of buckets, disks, HDFS, FTP, GitHub, Dropbox
    "ETag", "etag", "md5Hash", "checksum", "generation", "LastModified", "last_modified", "mtime", "created",
    "modificationTime", "modify", "sha", "content_hash",
)  # fmt: skip


class Failed(Exception):
    """No server, a timeout, an answer that was cut or is not the one asked for."""

    def __init__(self, said: object) -> None:
        super().__init__(on_one_line(said))


def source_of(url: str, tries: int) -> Source:
    return _patiently(url, lambda: (Http if url.startswith(("http://", "https://")) else Fsspec)(url), tries)


def read(source: Source, begin: int, end: int, go_on: Callable[[], bool] = lambda: True, tries: int = TRIES) -> bytes:
    """go_on: asked after each piece; False ends it early."""
    return _patiently(source.url, lambda: b"".join(takewhile(lambda _: go_on(), source.pieces(begin, end))), tries)


def _patiently(url: str, ask: Callable[[], T], tries: int) -> T:
    last = time.monotonic() + MOST_S
    for failures in count(1):
        try:
            return ask()
        except Failed as error:
            pause(url, error, failures, tries if time.monotonic() < last else 0)
    raise AssertionError


def pause(url: str, error: Failed, failures: int, tries: int = TRIES) -> None:
    if failures >= tries:
        raise ConfigError(f"{shown(url)}: {error} (tried {failures} times)") from error
    time.sleep(PAUSE_S * 2 ** (failures - 1))


class Http:
    """version: another one is another file. ranged: a part can be had without what comes before it. pieces: the bytes
    from begin to end, each piece as it comes; safe from several threads."""

    def __init__(self, url: str) -> None:
        self.url, self._login = url, ""
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"data.path={shown(url)}: {error}") from None
        if not host or parts.username or "*" in parts.path:
            what = "a web server does not list its files; give a list of addresses" if host else "it names no host"
            what = "a password would stand in config.yaml; put it into ~/.netrc" if parts.username else what
            raise ConfigError(f"data.path={shown(url)}: {what}")
        with suppress(OSError, netrc.NetrcParseError):
            if parts.scheme == "https" and (known := netrc.netrc().hosts.get(host)):
                self._login = "Basic " + base64.b64encode(f"{known[0]}:{known[2]}".encode()).decode()
        with self._answer(0, 1) as answer:
            self.ranged = answer.status == 206
            self.size, self.version = self._identity(answer)

    def pieces(self, begin: int, end: int) -> Iterator[bytes]:
        with self._answer(begin, end) as answer:
            if self._identity(answer) != (self.size, self.version):
                raise _changed(self.url)
            at = came = begin if self.ranged else 0
            since = time.monotonic()
            if self.ranged and not answer.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
                raise Failed(f"the answer does not begin at byte {begin}")
            while at < end:
                piece = answer.read1(min(PIECE, end - at))
                if not piece:
                    raise Failed(f"the answer ended at byte {at:,} of {end:,}")
                at += len(piece)
                if (now := time.monotonic()) - since > TIMEOUT_S:
                    if at - came < LEAST and at < end:
                        raise Failed(f"only {at - came:,} bytes came in {now - since:.0f} s")
                    since, came = now, at
                if at > begin:  # else of a server that sends all of it each time
                    yield piece[-(at - begin) :]

    def _identity(self, answer: Any) -> tuple[int, str]:
        """(size, version) as this answer says."""
        size = answer.headers.get("Content-Range" if answer.status == 206 else "Content-Length", "").rpartition("/")[2]
        if not size.isdigit() or answer.headers.get("Content-Encoding", "identity") != "identity":
            what = "the server does not say its size, or compresses it; download it, and give the file"
            raise ConfigError(f"{shown(self.url)}: {what}")
        return int(size), f"{size} {answer.headers.get('ETag') or answer.headers.get('Last-Modified')}"

    @contextmanager
    def _answer(self, begin: int, end: int) -> Iterator[Any]:
        asked = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        request = urllib.request.Request(quote(self.url, safe="%/:?#[]@!$&'()*+,;=~"), headers=asked)
        if self._login:
            request.add_unredirected_header("Authorization", self._login)  # for this host alone
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                yield answer
        except HTTPError as error:
            error.close()
            said = f"{error.code} {error.reason}{MEANS.get(error.code, '')}"
            if error.code in (408, 429) or error.code >= 500:
                raise Failed(said) from error
            raise refused(self.url, said) from None
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise refused(self.url, f"its certificate: {reason.verify_message}") from None
            raise Failed(getattr(reason, "strerror", None) or reason or type(reason).__name__) from error


class Fsspec:
    """As Http."""

    ranged = True

    def __init__(self, url: str) -> None:
        self.url = url
        with self._asking():
            from fsspec.core import url_to_fs

            self._files, self._path = url_to_fs(url)
            self._files.retries = 1  # s3fs would try five times each time that we do, a minute each
        self.size, self.version = self._identity()

    def pieces(self, begin: int, end: int) -> Iterator[bytes]:
        with self._asking():
            data = self._files.cat_file(self._path, start=begin, end=end)
        if self._identity() != (self.size, self.version):
            raise _changed(self.url)
        if len(data) != end - begin:
            raise Failed(f"{len(data):,} of {end - begin:,} bytes came")
        yield data

    def _identity(self) -> tuple[int, str]:
        with self._asking():
            self._files.invalidate_cache()
            info = self._files.info(self._path)
        if info.get("type") == "directory" or not isinstance(info.get("size"), int):
            raise ConfigError(f"{shown(self.url)}: is no file of a known size")
        return info["size"], " ".join([str(info["size"]), *(f"{key}={info[key]}" for key in STAMPS if info.get(key))])

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            raise refused(self.url, f"{first_line(error)} - {pip_install('fsspec s3fs')}") from None
        except FileNotFoundError:
            pattern = "; a pattern is not looked up, give a list" if "*" in self.url else ""
            raise ConfigError(f"{shown(self.url)}: no such file, or no such bucket{pattern}") from None
        except (PermissionError, ValueError) as error:  # of an unknown protocol too
            raise refused(self.url, told(error)) from None
        except Exception as error:  # of any library
            raise Failed(told(error)) from error


Source = Http | Fsspec


def told(error: Exception) -> str:
    """What a library says of a place, on one line, and what to do where it is about who asks."""
    said = on_one_line(error)[:300] or type(error).__name__
    return said + LOGIN * (isinstance(error, PermissionError) or "credentials" in said)


def refused(url: str, said: str) -> ConfigError:
    return ConfigError(on_one_line(f"{shown(url)}: {said}"))


def _changed(url: str) -> ConfigError:
    return ConfigError(f"{shown(url)}: was changed while it was fetched; start the run again")
