"""What `fab prepare` writes down about a stream, and training reads: its files, how they are read, what is held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.data.encode import Division
from training.data.readers import Reading
from training.data.stream.documents import HeldOut
from training.data.stream.source import StreamFile
from training.manifest import STREAM, TokenError

SEED = 1337  # draws the documents that are held out, as prepare does


@dataclass(frozen=True)
class StreamListing:
    """A manifest's entry about the stream. It stays as it was prepared, also if the source gets more files."""

    source: str  # a path on the node of rank 0, hf:NAME[:CONFIG], or the URL of a bucket's folder
    files: tuple[StreamFile, ...]
    reading: Reading
    held_out: HeldOut | None

    def to_json(self) -> dict[str, Any]:
        """The entry in the manifest. Its checksum is over what the documents depend on: not over where they are."""
        held = self.held_out and {
            "name": self.held_out.name,
            "fraction": self.held_out.division.fraction,
            "stretch": self.held_out.division.stretch,
        }
        entry = {
            "files": [[file.name, file.size] for file in self.files],
            "text_key": self.reading.text_key,
            "invalid": self.reading.invalid,
            "lines": self.reading.lines,
            "held_out": held,
        }
        return {**entry, "source": self.source, "sha256": hashlib.sha256(json.dumps(entry).encode()).hexdigest()}

    @classmethod
    def of(cls, manifest: Mapping[str, Any], where: str) -> StreamListing:
        """From the manifest of a token set; TokenError if it has none."""
        try:
            entry = manifest[STREAM]
            held = entry["held_out"]
            return cls(
                entry["source"],
                tuple(StreamFile(str(name), int(size)) for name, size in entry["files"]),
                Reading(entry["text_key"], entry["lines"], entry["invalid"]),
                held and HeldOut(held["name"], Division(held["fraction"], SEED, held["stretch"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TokenError(f"{where}: not the manifest of a stream ({error})") from None
