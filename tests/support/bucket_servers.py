"""Real servers of buckets on loopback: moto for S3, Azurite for blobs; and a wire to them that counts, slows and cuts.

Azurite is a program of npm's: it is installed once into the user's cache, by the first test that needs it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from gloo_ranks import free_port

AZURITE = "3.37.0"
ACCOUNT = "devstoreaccount1"
# Published with Azurite, the same everywhere: it opens nothing but a test server.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass
class Server:
    """A server with one bucket, reached over a wire."""

    url: str
    """Of the bucket."""
    environment: dict[str, str]
    """What a client has to be told."""
    wire: Wire
    process: subprocess.Popen[bytes] | None = None


@contextmanager
def directory(folder: Path) -> Iterator[Server]:
    folder.mkdir(parents=True)
    yield Server(f"file://{folder}", {}, Wire(0))


@contextmanager
def s3(folder: Path) -> Iterator[Server]:
    """moto's server: the clients' code is the real one, unmocked, over HTTP."""
    port = free_port()
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(argv, folder, port) as process, _wire(port) as wire:
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{wire.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        client.create_bucket(Bucket="shelf")
        yield Server("s3://shelf", environment, wire, process)


@contextmanager
def blobs(folder: Path) -> Iterator[Server]:
    port = free_port()
    argv = [str(azurite()), "--silent", "--skipApiVersionCheck", "--disableTelemetry", "--location", str(folder)]
    argv += ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with _running(argv, folder, port) as process, _wire(port) as wire:
        from azure.storage.blob import BlobServiceClient

        BlobServiceClient.from_connection_string(_connection(port)).create_container("shelf")
        environment = {"AZURE_STORAGE_CONNECTION_STRING": _connection(wire.port)}
        yield Server(f"abfs://shelf@{ACCOUNT}.dfs.core.windows.net", environment, wire, process)


def _connection(port: int) -> str:
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={_KEY};BlobEndpoint={endpoint};"


def azurite() -> Path:
    """Its program, installed where it is not there yet; the test is skipped where it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainyard"
    folder = cache / f"azurite-{AZURITE}"
    program = folder / "node_modules/.bin/azurite-blob"
    if not program.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("no npm on this machine, which Azurite is installed with")
        cache.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=cache))
        argv = [npm, "install", "--prefix", str(temporary), "--no-audit", "--no-fund", f"azurite@{AZURITE}"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=240)
        if done.returncode != 0:
            shutil.rmtree(temporary)
            pytest.skip(f"npm cannot install azurite: {done.stderr.strip().splitlines()[-1:]}")
        with suppress(OSError):  # another test was quicker
            temporary.rename(folder)
        shutil.rmtree(temporary, ignore_errors=True)
    return program


@contextmanager
def _running(argv: list[str], folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None and time.monotonic() < end, (folder / "server.log").read_text()
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass
class Wire:
    """Between client and server: passes bytes on, counts them, and does to them what a network does."""

    to: int
    port: int = 0
    sent: int = 0
    """Bytes from client to server."""
    received: int = 0
    rate: float = float("inf")
    """Bytes a second, of each connection."""
    down: bool = False
    """Refuses new connections and has ended the old ones."""
    _open: list[socket.socket] = field(default_factory=list)

    def cut(self) -> None:
        self.down = True
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        self.down, self.sent, self.received, self.rate = False, 0, 0, float("inf")


@contextmanager
def _wire(to: int) -> Iterator[Wire]:
    wire = Wire(to)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        wire.port = int(listener.getsockname()[1])
        threading.Thread(target=_accept, args=(wire, listener), daemon=True).start()
        yield wire
        wire.cut()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _accept(wire: Wire, listener: socket.socket) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        if wire.down:
            client.close()
            continue
        try:
            server = socket.create_connection(("127.0.0.1", wire.to), 5)
        except OSError:
            client.close()
            continue
        wire._open += [client, server]
        for source, target, up in ((client, server, True), (server, client, False)):
            threading.Thread(target=_pass, args=(wire, source, target, up), daemon=True).start()


def _pass(wire: Wire, source: socket.socket, target: socket.socket, up: bool) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            if wire.down:  # opened just when the others were cut
                break
            if up:
                wire.sent += len(data)
            else:
                wire.received += len(data)
            target.sendall(data)
            if wire.rate < float("inf"):
                time.sleep(len(data) / wire.rate)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
