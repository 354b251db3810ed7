"""A Hugging Face hub on loopback with one data set, as far as the real libraries ask it; it may misbehave.

`datasets` and `huggingface_hub` talk to it over HTTP, by HF_ENDPOINT; what it answers was read off their requests.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from http_server import listening

REVISION = "607bd4c8450a42878aa9ddc051a65a055450ef87"
CARD = """---
configs:
- config_name: en
  data_files:
  - split: train
    path: en/c4-train.*.json.gz
  - split: validation
    path: en/c4-validation.*.json.gz
---
"""


@dataclass
class Hub:
    """What the server does with the files' bytes. `mischief` may answer a read by itself, and returns True then."""

    name: str
    root: Path
    url: str = ""
    reads: list[tuple[str, int]] = field(default_factory=list)
    """Name and first byte of every range that was asked for."""
    mischief: Callable[[BaseHTTPRequestHandler, str, int], bool] = lambda *_: False
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def environment(self) -> dict[str, str]:
        """For a client, without delays of its own."""
        return {"HF_ENDPOINT": self.url, "HF_HUB_DOWNLOAD_TIMEOUT": "2", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def file(self, name: str) -> bytes | None:
        if name == "README.md":
            return CARD.encode()
        path = self.root / name
        return path.read_bytes() if path.is_file() else None

    def entries(self) -> list[dict[str, Any]]:
        files = {str(path.relative_to(self.root)): path.stat().st_size for path in sorted(self.root.rglob("*.gz"))}
        found = {"README.md": len(CARD), **files}
        folders = [{"type": "directory", "oid": "1" * 40, "size": 0, "path": "en"}]
        return [*folders, *({"type": "file", "oid": "0" * 40, "size": n, "path": p} for p, n in found.items())]


class Handler(BaseHTTPRequestHandler):
    """Answers for the server `hub`, which a class derived from this one has."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if self.hub.closing.is_set():  # a server that has died: its open connections must not outlive it
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(rf"/datasets/{self.hub.name}/resolve/[^/]+/(.+)", path):
            self._file(found[1])
        elif re.fullmatch(rf"/api/datasets/{self.hub.name}(/revision/.+)?", path):
            siblings = [{"rfilename": each["path"]} for each in self.hub.entries() if each["type"] == "file"]
            self._json({"id": self.hub.name, "sha": REVISION, "siblings": siblings, "private": False, "tags": []})
        elif found := re.fullmatch(rf"/api/datasets/{self.hub.name}/tree/[^/]+/?(.*)", path):
            below = [each for each in self.hub.entries() if not found[1] or each["path"].startswith(f"{found[1]}/")]
            deep = "recursive=true" in self.path.lower()
            self._json([each for each in below if deep or "/" not in each["path"].removeprefix(f"{found[1]}/")])
        elif re.fullmatch(rf"/api/datasets/{self.hub.name}/paths-info/.+", path):
            wanted = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body)["paths"]
            self._json([each for each in self.hub.entries() if each["path"] in wanted])
        else:
            self._json({"error": "not found"}, 404)

    def _json(self, value: object, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _file(self, name: str) -> None:
        data = self.hub.file(name)
        if data is None:
            return self._json({"error": "no such file"}, 404)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(asked[1]), int(asked[2])) if asked else (0, len(data) - 1)
        if self.command == "GET" and name != "README.md":
            self.hub.reads.append((name, first))
            if self.hub.mischief(self, name, first):
                return None
        part = data[first : last + 1]
        self.send_response(206 if asked else 200)
        self.send_header("ETag", '"0"')
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(root: Path, name: str = "allenai/c4", port: int = 0) -> Iterator[Hub]:
    """A hub whose one data set has the files of `root`; port 0: any that is free."""
    hub = Hub(name, root)
    with listening(type("Handler", (Handler,), {"hub": hub}), port) as hub.url:
        try:
            yield hub
        finally:
            hub.closing.set()
