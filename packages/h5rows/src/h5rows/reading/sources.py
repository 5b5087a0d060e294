"""Read remote files from a web server, or from any storage that fsspec supports (s3://). No torch, no h5py.

An error that may not repeat is raised as Failed, so that the caller tries again; other errors are a ConfigError.
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

from h5rows.errors import ConfigError, argument, first_line, on_one_line, pip_install
from h5rows.reading.folders import shown

T = TypeVar("T")
PIECE = 1 << 20  # bytes
TIMEOUT_S, TRIES, PAUSE_S = 30.0, 3, 0.5
LEAST = 64 << 10  # bytes in TIMEOUT_S; after less, the request is repeated, because the connection may be stuck
MOST_S = 240.0  # no try begins later, so that a run fails before it counts as hung
LOGIN = "; for s3://, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use ~/.aws/credentials"
MEANS = {401: "; write name and password to ~/.netrc", 416: "; the file is empty"}
STAMPS = (  # keys of info() that differ between versions of a file: for buckets, disks, HDFS, FTP, GitHub, Dropbox
    "ETag", "etag", "md5Hash", "checksum", "generation", "LastModified", "last_modified", "mtime", "created",
    "modificationTime", "modify", "sha", "content_hash",
)  # fmt: skip


class Failed(Exception):
    """No connection, a timeout, or an answer that is incomplete or wrong."""

    def __init__(self, said: object) -> None:
        super().__init__(on_one_line(said))


def source_of(url: str, tries: int) -> Source:
    """Return the source of a URL. tries: number of attempts to reach it."""
    return _patiently(url, lambda: (Http if url.startswith(("http://", "https://")) else Fsspec)(url), tries)


def read(source: Source, begin: int, end: int, go_on: Callable[[], bool] = lambda: True, tries: int = TRIES) -> bytes:
    """Return the bytes begin..end of a source. go_on: called after each piece; False ends the download early."""
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
    """Wait before the next try. Raise ConfigError after the last one."""
    if failures >= tries:
        raise ConfigError(f"{shown(url)}: {error} (tried {failures} times)") from error
    time.sleep(PAUSE_S * 2 ** (failures - 1))


class Http:
    """A file on a web server.

    version: differs if the file differs; "<size> None" if the server sends neither ETag nor date. ranged: parts can be
    read without the bytes before them.
    """

    def __init__(self, url: str) -> None:
        self.url, self._login = url, ""
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"{argument('path')}={shown(url)}: {error}") from None
        if not host or parts.username or "*" in parts.path:
            what = "a web server cannot list its files; give a list of URLs" if host else "it has no host"
            what = "a password would be saved in config.yaml; write it to ~/.netrc" if parts.username else what
            raise ConfigError(f"{argument('path')}={shown(url)}: {what}")
        with suppress(OSError, netrc.NetrcParseError):
            if parts.scheme == "https" and (known := netrc.netrc().hosts.get(host)):
                self._login = "Basic " + base64.b64encode(f"{known[0]}:{known[2]}".encode()).decode()
        with self._answer(0, 1) as answer:
            self.size, self.version = self._identity(answer)
            # parts of two versions could be mixed if the server does not tell them apart
            self.ranged = answer.status == 206 and self.version != f"{self.size} None"

    def pieces(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes begin..end in pieces as they are received. Safe from several threads."""
        with self._answer(begin, end) as answer:
            if self._identity(answer) != (self.size, self.version):
                raise _changed(self.url)
            at = came = begin if answer.status == 206 else 0
            since = time.monotonic()
            if answer.status == 206 and not answer.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
                raise Failed(f"the answer does not begin at byte {begin}")
            while at < end:
                piece = answer.read1(min(PIECE, end - at))
                if not piece:
                    raise Failed(f"the answer ended at byte {at:,} of {end:,}")
                at += len(piece)
                if (now := time.monotonic()) - since > TIMEOUT_S:
                    if at - came < LEAST and at < end:
                        raise Failed(f"only {at - came:,} bytes received in {now - since:.0f} s")
                    since, came = now, at
                if at > begin:  # otherwise the server sends the whole file, and these bytes precede `begin`
                    yield piece[-(at - begin) :]

    def _identity(self, answer: Any) -> tuple[int, str]:
        """Return (size, version) from the headers of an answer."""
        size = answer.headers.get("Content-Range" if answer.status == 206 else "Content-Length", "").rpartition("/")[2]
        if not size.isdigit() or answer.headers.get("Content-Encoding", "identity") != "identity":
            what = "the server does not send its size, or compresses it; download it yourself, and give the file"
            raise ConfigError(f"{shown(self.url)}: {what}")
        return int(size), f"{size} {answer.headers.get('ETag') or answer.headers.get('Last-Modified')}"

    @contextmanager
    def _answer(self, begin: int, end: int) -> Iterator[Any]:
        asked = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        request = urllib.request.Request(quote(self.url, safe="%/:?#[]@!$&'()*+,;=~"), headers=asked)
        if self._login:
            request.add_unredirected_header("Authorization", self._login)  # only for this host
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
    """A file on a storage of fsspec, with the interface of Http."""

    ranged = True

    def __init__(self, url: str) -> None:
        self.url = url
        with self._asking():
            from fsspec.core import url_to_fs

            self._files, self._path = url_to_fs(url)
            self._files.retries = 1  # s3fs would make five tries of a minute in each of our tries
        self.size, self.version = self._identity()

    def pieces(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes begin..end in one piece."""
        with self._asking():
            data = self._files.cat_file(self._path, start=begin, end=end)
        if self._identity() != (self.size, self.version):
            raise _changed(self.url)
        if len(data) != end - begin:
            raise Failed(f"{len(data):,} of {end - begin:,} bytes received")
        yield data

    def _identity(self) -> tuple[int, str]:
        with self._asking():
            self._files.invalidate_cache()
            info = self._files.info(self._path)
        if info.get("type") == "directory" or not isinstance(info.get("size"), int):
            raise ConfigError(f"{shown(self.url)}: is not a file of a known size")
        return info["size"], " ".join([str(info["size"]), *(f"{key}={info[key]}" for key in STAMPS if info.get(key))])

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            raise refused(self.url, f"{first_line(error)} - {pip_install('fsspec s3fs')}") from None
        except FileNotFoundError:
            pattern = "; patterns are not supported, give a list" if "*" in self.url else ""
            raise ConfigError(f"{shown(self.url)}: no such file, or no such bucket{pattern}") from None
        except (PermissionError, ValueError) as error:  # also for an unknown protocol
            raise refused(self.url, told(error)) from None
        except Exception as error:  # from any library
            raise Failed(told(error)) from error


Source = Http | Fsspec


def told(error: Exception) -> str:
    """Return a library's error message as one line, with a hint if it is about access rights."""
    said = on_one_line(error)[:300] or type(error).__name__
    return said + LOGIN * (isinstance(error, PermissionError) or "credentials" in said)


def refused(url: str, said: str) -> ConfigError:
    """Return a ConfigError for a URL, on one line."""
    return ConfigError(on_one_line(f"{shown(url)}: {said}"))


def _changed(url: str) -> ConfigError:
    return ConfigError(f"{shown(url)}: was changed while it was downloaded; start the run again")
