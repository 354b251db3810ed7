"""Kubernetes' published programs are fetched from a server of the test's own: a good one, and each that is not."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from http_server import listening

from infra.clouds.local import paths
from infra.clouds.local.kubernetes import programs, published
from infra.errors import OperationError

FILE = f"v{programs.VERSION}/kubernetes-server-linux-amd64.tar.gz"


def archive(*names: str) -> bytes:
    """As it is published, with a program more than are wanted."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as into:
        for name in (*names, "kube-proxy"):
            member = tarfile.TarInfo(f"kubernetes/server/bin/{name}")
            content = f"#!/bin/sh\necho {name}\n".encode()
            member.size, member.mode = len(content), 0o644
            into.addfile(member, io.BytesIO(content))
    return written.getvalue()


GOOD = archive(*programs.NAMES)


@dataclass
class Server:
    """What it gives, and how."""

    status: int = 200
    content: bytes = GOOD
    size: int = len(GOOD)
    stalls: bool = False
    asked: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def cut(self) -> None:
        """Have it give half of the file."""
        self.content = GOOD[: len(GOOD) // 2]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    played = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            played.asked.append(self.path)
            self.send_response(played.status)
            self.send_header("Content-Length", str(played.size))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(played.content)
            if played.stalls:
                played.ended.wait(30)

        def log_message(self, *_: object) -> None:
            """Nothing: pytest shows what a test needs."""

    monkeypatch.setattr(published, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(published, "SHA512", {FILE: hashlib.sha512(GOOD).hexdigest()})
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with listening(Handler) as url:
        monkeypatch.setattr(published, "URL", url)
        yield played
        played.ended.set()


def fetch(to: Path, said: list[str], check: Callable[[], None] = lambda: None) -> None:
    published.fetch(programs.VERSION, programs.NAMES, to, said.append, check)


def test_the_programs_of_the_file_are_there_and_run(server: Server, tmp_path: Path) -> None:
    fetch(tmp_path, [])
    assert server.asked == [f"/{FILE}"]
    assert {path.name for path in tmp_path.iterdir()} == set(programs.NAMES), "and nothing else of it"
    assert all(path.stat().st_mode & 0o777 == 0o755 for path in tmp_path.iterdir())
    assert (tmp_path / "kubelet").read_text() == "#!/bin/sh\necho kubelet\n"


def test_another_file_is_an_error_that_names_both_hashes_and_nothing_of_it_is_used(
    server: Server, tmp_path: Path
) -> None:
    server.content = GOOD[:-1] + bytes([GOOD[-1] ^ 1])
    found, wanted = hashlib.sha512(server.content).hexdigest(), hashlib.sha512(GOOD).hexdigest()
    with pytest.raises(OperationError, match=f"{FILE} has sha512 {found}, and should have {wanted}"):
        fetch(tmp_path, [])
    assert not list(tmp_path.iterdir())


def test_a_file_without_a_program_that_is_wanted_is_an_error(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.content = archive("kubelet")
    server.size = len(server.content)
    monkeypatch.setitem(published.SHA512, FILE, hashlib.sha512(server.content).hexdigest())
    with pytest.raises(OperationError, match=f"{FILE}: has no kubernetes/server/bin/kube-apiserver, "):
        fetch(tmp_path, [])


def stalls(server: Server) -> None:
    server.cut()
    server.stalls = True


def is_missing(server: Server) -> None:
    server.status, server.content, server.size = 404, b"", 0


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (stalls, f"timed out, after {len(GOOD) // 2} bytes"),
        (Server.cut, f"ended after {len(GOOD) // 2} of {len(GOOD)} bytes"),
        (is_missing, "HTTP Error 404: Not Found"),
    ],
)
def test_a_file_that_cannot_be_had_says_why_and_soon(
    server: Server, tmp_path: Path, happens: Callable[[Server], None], why: str
) -> None:
    happens(server)
    began = time.monotonic()
    with pytest.raises(published.OutOfReach, match=f"{FILE}: {why}$"):
        fetch(tmp_path, [])
    assert time.monotonic() - began < 10 and not list(tmp_path.iterdir())


def test_a_server_that_nobody_is_at_and_a_processor_without_a_hash(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "URL", "http://127.0.0.1:9")
    with pytest.raises(published.OutOfReach, match="Connection refused"):
        fetch(tmp_path, [])
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(published.OutOfReach, match=r"linux-riscv64\.tar\.gz: its hash is not known here"):
        fetch(tmp_path, [])


def test_both_kinds_of_processor_have_a_hash_for_the_version() -> None:
    names = {f"v{programs.VERSION}/kubernetes-server-linux-{name}.tar.gz" for name in ("amd64", "arm64")}
    assert set(published.SHA512) == names
    assert all(len(bytes.fromhex(value)) == 64 for value in published.SHA512.values())


# --- with what is built ---


@pytest.fixture
def go(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `go` that writes down what it is asked for; returns that file. The operator's definition is there."""
    there, asked = tmp_path / "bin", tmp_path / "asked"
    there.mkdir()
    (there / "go").write_text(f'#!/bin/sh\necho "$*" >> {asked}\n')
    (there / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{there}:/usr/bin:/bin")
    monkeypatch.setattr(programs, "_keep_definition", lambda scratch: None)
    paths.kubernetes().mkdir(parents=True)
    return asked


def test_what_is_fetched_is_not_built(server: Server, go: Path) -> None:
    said: list[str] = []
    programs.build([], said.append, lambda: None)
    first, second, third = go.read_text().splitlines()
    assert first.endswith(" ./pause") and "./kubernetes" not in first
    assert "/go/coredns build" in second and "training-operator" in third
    assert programs.are_there() and (programs.folder() / "kubelet").read_text() == "#!/bin/sh\necho kubelet\n"
    assert said[1].startswith("CoreDNS and the training operator: building from Go modules")


def test_what_is_out_of_reach_is_said_in_one_line_and_built(server: Server, go: Path) -> None:
    is_missing(server)
    said: list[str] = []
    programs.build([], said.append, lambda: None)
    assert go.read_text().splitlines()[0].endswith(" ./kubernetes ./pause")
    (why,) = (line for line in said if "404" in line)
    assert why.endswith(f"/{FILE}: HTTP Error 404: Not Found; so it is built here") and "\n" not in why
    assert {name: (programs.folder() / name).readlink() for name in programs.NAMES} == dict.fromkeys(
        programs.NAMES, Path("kubernetes")
    )


def test_another_file_is_never_built_instead(server: Server, go: Path) -> None:
    server.content = GOOD[:-1] + bytes([GOOD[-1] ^ 1])
    with pytest.raises(OperationError, match="and should have"):
        programs.build([], lambda line: None, lambda: None)
    assert not go.exists() and not list(paths.kubernetes().iterdir())


def test_ctrl_c_in_between_leaves_nothing(server: Server, go: Path) -> None:
    stalls(server)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        programs.build([], lambda line: None, interrupted)
    assert server.asked and not go.exists() and not list(paths.kubernetes().iterdir())
