"""A program and a provider for the embedded engine's tests: resources are files on a shelf, and each can misbehave."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult


def directory() -> Path:
    return Path.home() / "shelf"


def log() -> list[str]:
    """What the provider was asked to do, in order."""
    path = directory() / "log"
    return path.read_text().splitlines() if path.exists() else []


def _log(what: str) -> None:
    with (directory() / "log").open("a") as file:
        file.write(what + "\n")


class BookProvider(ResourceProvider):
    """`book` says how a book behaves: fails, dies, hangs for a moment, interrupts."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        name, mode = props["name"], props["mode"]
        if mode == "fails":
            raise OSError(f"{name} does not fit")
        time.sleep(0.3 if mode == "slow" else 0)
        (directory() / name).write_text(str(int(props["pages"])))
        _log(f"create {name}")
        if mode == "dies":
            os._exit(9)  # as by SIGKILL or a power cut: made, and nobody was told
        if mode == "interrupts":
            os.kill(os.getpid(), signal.SIGINT)
        return CreateResult(name, {**props, "mark": f"{name}@{int(props['pages'])}"})

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        replaces = [key for key in ("kind", "late", "beside") if olds[key] != news[key]]
        changed = [*replaces, *(["pages"] if olds["pages"] != news["pages"] else [])]
        return DiffResult(changes=bool(changed), replaces=replaces, delete_before_replace="late" not in replaces)

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        there = (directory() / id_).exists()
        return ReadResult(id_ if there else "", props if there else {})

    def update(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        _log(f"update {id_}")
        (directory() / id_).write_text(str(int(news["pages"])))
        return UpdateResult({**olds, **news, "mark": olds["mark"]})

    def delete(self, id_: str, props: dict[str, Any]) -> None:
        if props["mode"] == "glued":
            raise OSError(f"{props['name']} is glued to the shelf")
        _log(f"delete {props['name']}")
        (directory() / props["name"]).unlink(missing_ok=True)


class MapProvider(BookProvider):
    """A kind of its own: the engine deletes those of one kind at once, and different kinds one after the other."""


class Book(Resource, module="test", name="Book"):
    """A file."""

    mark: pulumi.Output[str]

    def __init__(self, name: str, props: dict[str, Any], opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(
            MapProvider() if props["kind"] == "map" else BookProvider(),
            name,
            {**props, "name": name, "mark": None},
            opts,
        )


def want(**books: dict[str, Any]) -> None:
    """What the next run of the program declares: name -> pages, kind, mode, beside (the name of another)."""
    directory().mkdir(exist_ok=True)
    (directory() / "wanted").write_text(json.dumps(books))


def program() -> None:
    """Declares what `want` has written, each beside the mark of another one."""
    made: dict[str, Book] = {}
    for name, book in json.loads((directory() / "wanted").read_text()).items():
        props = {"pages": 1, "kind": "novel", "late": "", "mode": "", **book}
        props["beside"] = made[book["beside"]].mark if "beside" in book else ""
        made[name] = Book(name, props)
    pulumi.export("inventory", pulumi.Output.all(*(book.mark for book in made.values())).apply(json.dumps))
