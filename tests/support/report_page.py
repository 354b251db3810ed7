"""Reads a report's page and the runs of run_folder, for tests of `fab report`."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fabfile.report.load import run_of
from fabfile.report.run import JobRun, NodeFacts
from node import run_data

READY = {
    "profile": "native",
    "collectives": "gloo",
    "image": "0f3c",
    "versions": {"torch": "2.13.0", "os": "Debian 12"},
}


def read(folder: Path, **more: Any) -> JobRun:
    machines = [NodeFacts(name, READY) for name in ("node1", "node2")] + [
        NodeFacts("node3", {}, "not known now: no answer")
    ]
    return run_of(run_data.collect(folder), machines, {}, 1.0, **more)


class Page(HTMLParser):
    """The elements of a page: every one of them closed, with what they say and link to."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self.open:
            self.scripts.append(data)
        elif not {"style", "title"} & {*self.open}:
            self.text += data + "\n"


def visible_text(text: str) -> str:
    """What a reader of the page sees, in one line."""
    return re.sub(r"\s+", " ", Page(text).text)
