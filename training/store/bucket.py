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
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from training.manifest import TokenError

SCHEMES = ("s3", "abfs", "file")
SETTINGS = Path("/etc/trainyard.env")  # the cluster's settings on a node (not there on other machines)
_CONNECT, _READ = 10, 60  # timeouts in seconds
# The libraries' exceptions, by the names of their classes, as most of the libraries are not installed.
_NO_CREDENTIALS = {
    *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "MetadataRetrievalError"),
    *("ClientAuthenticationError", "CredentialUnavailableError"),
}
_NO_ANSWER = {
    *("EndpointConnectionError", "ConnectionClosedError", "HTTPClientError", "ConnectionError", "TimeoutError"),
    *("ServiceRequestError", "ServiceResponseError", "ClientConnectionError"),
}


class StoreError(RuntimeError):
    """An upload or download that failed: one line with the reason, and an exit code (2: a wrong request)."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class BucketFolder:
    """A folder in a bucket. Nothing is cached. The methods raise the cloud library's errors: see `plain_errors`."""

    url: str
    _fs: Any
    _path: str

    def at(self, name: str) -> BucketFolder:
        """A folder in this one."""
        return replace(self, url=f"{self.url}/{name}", _path=f"{self._path}/{name}")

    def files(self) -> dict[str, int]:
        """Size in bytes by file name, without folders below; empty if the folder does not exist."""
        return {_name(entry): int(entry["size"]) for entry in self._entries() if entry["type"] == "file"}

    def folders(self) -> list[str]:
        """Names of the folders in this one, sorted."""
        return sorted(_name(entry) for entry in self._entries() if entry["type"] == "directory")

    def below(self) -> dict[str, int]:
        """Size in bytes of every file at any depth, by its path relative to the folder; empty if there is none."""
        self._fs.invalidate_cache()
        root = self._path.rstrip("/") + "/"
        found: dict[str, dict[str, Any]] = self._fs.find(self._path, detail=True)
        return {path.removeprefix(root): int(each["size"]) for path, each in found.items() if path.startswith(root)}

    def size(self, name: str) -> int:
        """The size of a file in bytes. FileNotFoundError."""
        self._fs.invalidate_cache()
        return int(self._fs.info(f"{self._path}/{name}")["size"])

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes | None:
        """The bytes of a file, or of the range [start, end) of it; None if it does not exist."""
        try:
            return bytes(self._fs.cat_file(f"{self._path}/{name}", start=start, end=end))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a small file in one request."""
        self._fs.pipe_file(f"{self._path}/{name}", data)

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file in one request unless there is one of this name; whether it was written. Of several
        writers at the same time exactly one gets True."""
        try:
            if "file" in self._protocols():
                self._create_local(Path(f"{self._path}/{name}"), data)
            else:
                self._fs.pipe_file(f"{self._path}/{name}", data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if _is_refused_as_there(error):
                return False
            raise
        return True

    def upload(self, name: str, source: Path, sent: Callable[[int], None]) -> None:
        """Upload a file; it appears only when it is complete. `sent` gets the bytes sent since its last call."""
        from fsspec.callbacks import Callback

        total = 0

        def show(size: int | None, value: int, **_: Any) -> None:
            nonlocal total
            sent(value - total)
            total = value

        self._fs.put_file(str(source), f"{self._path}/{name}", callback=Callback(hooks={"show": show}))

    def _protocols(self) -> tuple[str, ...]:
        found = self._fs.protocol
        return (found,) if isinstance(found, str) else tuple(found)

    def _create_local(self, path: Path, data: bytes) -> None:
        """A link to a whole file appears at once or not at all. FileExistsError."""
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(data)
            os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove a file; no error if it does not exist."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._path}/{name}")

    def remove_folder(self, name: str, first: str) -> None:
        """Remove the files of a folder, `first` before all others, and in a directory the folder itself."""
        folder = self.at(name)
        for file in sorted(folder.files(), key=lambda file: file != first):
            folder.remove(file)
        if "file" in self._protocols():
            with suppress(OSError):  # somebody else has put something there
                Path(folder._path).rmdir()

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


def open_folder(url: str) -> BucketFolder:
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
    return BucketFolder(url, fs, str(path))


@contextmanager
def plain_errors(url: str) -> Iterator[None]:
    """Turn every exception of a cloud's library, and a TokenError, into a StoreError with one plain line."""
    try:
        yield
    except StoreError:
        raise
    except TokenError as error:
        raise StoreError(str(error), 2) from None
    except Exception as error:  # the exceptions of the four libraries have no common class
        raise StoreError(f"{url}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    kinds = {kind.__name__ for each in causes for kind in type(each).__mro__}
    line = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    if isinstance(error, PermissionError) and error.filename:  # on this machine's own disk
        return f"{error.filename}: {error.strerror}"
    if kinds & _NO_CREDENTIALS:
        return f"no credentials: this machine has no instance profile or managed identity ({line})"
    if "PermissionError" in kinds or any(getattr(each, "status_code", 0) == 403 for each in causes):
        return f"refused: this machine's identity may not do that ({line})"
    if any(isinstance(each, OSError) and each.errno in (errno.ENOSPC, errno.EDQUOT) for each in causes):
        return "the disk is full"
    if kinds & _NO_ANSWER:
        return f"no answer ({line})"
    return f"not found ({line})" if "FileNotFoundError" in kinds else f"{type(error).__name__}: {line}"


def _is_refused_as_there(error: OSError) -> bool:
    """Whether S3 has refused a conditional write: the object exists (412), or somebody else is writing it (409)."""
    return getattr(error.__cause__, "response", {}).get("Error", {}).get("Code") in (
        *("PreconditionFailed", "ConditionalRequestConflict"),
    )


def _options(scheme: str) -> dict[str, Any]:
    """fsspec's options: with credentials, timeouts and retries."""
    if scheme == "file":
        return {"auto_mkdir": True}
    options = {"anon": False, "use_listings_cache": False}
    if scheme == "abfs":
        # Azure's library uses the machine's only identity, or the one that AZURE_CLIENT_ID names.
        return {**options, "connection_timeout": _CONNECT, "read_timeout": _READ}
    retries = {"max_attempts": 3, "mode": "standard"}
    timeouts = {"connect_timeout": _CONNECT, "read_timeout": _READ, "retries": retries}
    return {**options, "client_kwargs": {"region_name": region()}, "config_kwargs": timeouts}


def region() -> str | None:
    """The AWS region of this machine and its cluster's bucket; None: the default of AWS's library, us-east-1. By itself
    the library reads only AWS_DEFAULT_REGION, not the instance metadata."""
    lines = SETTINGS.read_text().splitlines() if SETTINGS.exists() else []
    settings = dict(line.split("=", 1) for line in lines if "=" in line)
    given = (os.environ.get("AWS_REGION"), os.environ.get("AWS_DEFAULT_REGION"), settings.get("TRAINYARD_REGION"))
    return next(filter(None, given), None)


def _identity() -> None:
    """Get the token for Azure's storage once, to fail fast: without an identity the storage library takes minutes."""
    logging.getLogger("azure").addHandler(logging.NullHandler())  # we report the error, in one line
    logging.getLogger("azure").propagate = False
    if any(f"AZURE_STORAGE_{name}" in os.environ for name in ("CONNECTION_STRING", "SAS_TOKEN", "ACCOUNT_KEY")):
        return  # set for a server that is not Azure's
    from azure.identity import DefaultAzureCredential

    with DefaultAzureCredential() as credential:
        credential.get_token("https://storage.azure.com/.default")


def _name(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]
