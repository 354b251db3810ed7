"""Web servers on loopback, for as long as a test needs them; `serve` is one that remembers what it was asked."""

from __future__ import annotations

import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Asked:
    """A request. Paths and queries are as they were sent; names of headers are in small letters."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Server:
    url: str
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler], port: int = 0, *, identity: bytes = b"") -> Iterator[str]:
    """The address of a server whose requests the handler answers; port 0: any that is free. With `identity`, a
    certificate and its key as PEM, it speaks TLS."""
    httpd = ThreadingHTTPServer(("127.0.0.1", port), handler)
    httpd.daemon_threads = True
    httpd.block_on_close = False  # a handler may hang on purpose
    if identity:
        httpd.socket = _tls(identity).wrap_socket(httpd.socket, server_side=True)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"{'https' if identity else 'http'}://127.0.0.1:{httpd.server_port}"
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def _tls(identity: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:  # it reads from files alone
        file.write(identity)
        file.flush()
        context.load_cert_chain(file.name)
    return context


@contextmanager
def serve(answer: Callable[[Asked], Answer], *, identity: bytes = b"") -> Iterator[Server]:
    """A server that answers as it is told here; `identity` as in `listening`."""
    server = Server("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_DELETE(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers)
            server.asked.append(asked)
            made = answer(asked)
            self.send_response(made.status)
            for name, value in {"Content-Length": str(len(made.body)), **made.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(made.body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with listening(Handler, identity=identity) as server.url:
        yield server
