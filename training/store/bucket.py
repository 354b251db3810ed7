"""A folder in a bucket, a container or a shared directory, by its URL: one code path, fsspec's, for all of them.

    s3://BUCKET/FOLDER                                          the machine's instance profile opens it
    abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER        the machine's managed identity opens it
    file:///FOLDER                                              a shared directory, or a test's

Credentials are never given here and never in a file: the clouds' own libraries ask the machine for its identity.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

SCHEMES = ("s3", "abfs", "file")
SETTINGS = Path("/etc/trainyard.env")
"""The cluster's settings on a node; not there on other machines."""
_CONNECT, _READ = 10, 60  # timeouts in seconds
_NO_CREDENTIALS = {
    *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "MetadataRetrievalError"),
    *("ClientAuthenticationError", "CredentialUnavailableError"),
}
_NO_ANSWER = {
    *("EndpointConnectionError", "ConnectionClosedError", "HTTPClientError", "ConnectionError", "TimeoutError"),
    *("ServiceRequestError", "ServiceResponseError", "ClientConnectionError"),
}
_FULL = (errno.ENOSPC, errno.EDQUOT)


class StoreError(RuntimeError):
    """An upload or download that failed: one line with the reason."""

    def __init__(self, text: str, code: int = 1) -> None:
        """`code` is the exit code: 2 for a wrong request, 1 for a failure."""
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Place:
    """A folder in a bucket. Nothing is cached: every call asks the bucket. The methods raise the cloud library's
    exceptions, which `plain_errors` translates."""

    url: str
    _fs: Any
    _path: str

    def at(self, name: str) -> Place:
        """A folder in this one."""
        return replace(self, url=f"{self.url}/{name}", _path=f"{self._path}/{name}")

    def files(self) -> dict[str, int]:
        """Size in bytes by file name, without folders below; empty if the folder does not exist."""
        return {_name(entry): int(entry["size"]) for entry in self._entries() if entry["type"] == "file"}

    def folders(self) -> list[str]:
        """Names of the folders in this one, sorted."""
        return sorted(_name(entry) for entry in self._entries() if entry["type"] == "directory")

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes | None:
        """The bytes of a file, or of the range [start, end) of it; None if it does not exist."""
        try:
            return bytes(self._fs.cat_file(f"{self._path}/{name}", start=start, end=end))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a small file in one request."""
        self._fs.pipe_file(f"{self._path}/{name}", data)

    def upload(self, name: str, source: Path, sent: Callable[[int], None]) -> None:
        """Upload a file, in several parts at a time; it appears only when it is complete. `sent` is called with the
        number of bytes sent since its last call."""
        self._fs.put_file(str(source), f"{self._path}/{name}", callback=_counting(sent))

    def remove(self, name: str) -> None:
        """Remove a file; no error if it does not exist."""
        try:
            self._fs.rm_file(f"{self._path}/{name}")
        except FileNotFoundError:
            return

    def check(self) -> None:
        """StoreError if the bucket or container does not exist."""
        root = self._path.partition("/")[0]
        if root and not self._fs.exists(root):
            raise StoreError(f"{self.url}: there is no bucket or container {root}", 2)

    def _entries(self) -> list[dict[str, Any]]:
        self._fs.invalidate_cache()
        try:
            entries: list[dict[str, Any]] = self._fs.ls(self._path, detail=True)
        except FileNotFoundError:
            return []
        # A bucket also lists the folder itself if there is an object of its name.
        return [entry for entry in entries if entry["name"].rstrip("/").startswith(self._path.rstrip("/") + "/")]


def place(url: str) -> Place:
    """The folder at a URL. StoreError if the URL is invalid, or a library or the machine's identity is missing."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in SCHEMES or not rest.strip("/"):
        raise StoreError(f"{url}: not an address; allowed: s3://, abfs:// or file://, a bucket and a folder", 2)
    import fsspec  # here, as a machine without a bucket does not need it

    url = url.rstrip("/")
    with plain_errors(url):
        try:
            if scheme == "abfs":
                _identity()
            fs, path = fsspec.core.url_to_fs(url, skip_instance_cache=True, **_options(scheme))
        except ImportError as error:
            raise StoreError(f"{url}: {error.name} is not installed here: this is no image of that cloud's") from None
    return Place(url, fs, str(path))


@contextmanager
def plain_errors(url: str) -> Iterator[None]:
    """Turn every exception of a cloud's library into a StoreError with one plain line."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # the exceptions of the four libraries have no common class
        raise StoreError(f"{url}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    chain = list(_chain(error))
    kinds = {kind.__name__ for each in chain for kind in type(each).__mro__}
    said = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    if isinstance(error, PermissionError) and error.filename:  # on this machine's own disk
        return f"{error.filename}: {error.strerror}"
    if kinds & _NO_CREDENTIALS:
        return f"no credentials: this machine has no instance profile or managed identity ({said})"
    if any(isinstance(each, PermissionError) or getattr(each, "status_code", 0) == 403 for each in chain):
        return f"refused: this machine's identity may not do that ({said})"
    if any(isinstance(each, OSError) and each.errno in _FULL for each in chain):
        return "the disk is full"
    if kinds & _NO_ANSWER:
        return f"no answer ({said})"
    if any(isinstance(each, FileNotFoundError) for each in chain):
        return f"not there ({said})"
    return f"{type(error).__name__}: {said}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _options(scheme: str) -> dict[str, Any]:
    """fsspec's options: with credentials, timeouts and retries."""
    if scheme == "s3":
        retries = {"max_attempts": 3, "mode": "standard"}
        return {
            "anon": False,
            "client_kwargs": {"region_name": region()},
            "use_listings_cache": False,
            "config_kwargs": {"connect_timeout": _CONNECT, "read_timeout": _READ, "retries": retries},
        }
    if scheme == "abfs":
        # Azure's library uses the machine's only identity, or the one that AZURE_CLIENT_ID names.
        return {"anon": False, "use_listings_cache": False, "connection_timeout": _CONNECT, "read_timeout": _READ}
    return {"auto_mkdir": True}


def region() -> str | None:
    """The AWS region of this machine and of its cluster's bucket; None leaves the choice to AWS's library (us-east-1).

    AWS_REGION and AWS_DEFAULT_REGION come first. AWS's library itself reads only the latter, not the instance metadata.
    """
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if os.environ.get(name):
            return os.environ[name]
    lines = SETTINGS.read_text().splitlines() if SETTINGS.exists() else []
    settings = dict(line.split("=", 1) for line in lines if "=" in line)
    return settings.get("TRAINYARD_REGION") or None


def _identity() -> None:
    """Get the token for Azure's storage once, to fail fast: without an identity the storage library takes minutes."""
    logging.getLogger("azure").addHandler(logging.NullHandler())  # we report the error, in one line
    logging.getLogger("azure").propagate = False
    if any(f"AZURE_STORAGE_{name}" in os.environ for name in ("CONNECTION_STRING", "SAS_TOKEN", "ACCOUNT_KEY")):
        return  # set for a server that is not Azure's
    from azure.identity import DefaultAzureCredential

    with DefaultAzureCredential() as credential:
        credential.get_token("https://storage.azure.com/.default")


def _counting(sent: Callable[[int], None]) -> Any:
    from fsspec.callbacks import Callback

    class Counting(Callback):
        """Some libraries report how much more was sent, others the total."""

        def relative_update(self, inc: int = 1) -> None:
            super().relative_update(inc)
            sent(inc)

        def absolute_update(self, value: int) -> None:
            more = value - self.value
            super().absolute_update(value)
            sent(more)

    return Counting()


def _name(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]
