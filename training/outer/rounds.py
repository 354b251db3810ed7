"""What is in the bucket of clusters that train together. Each record has a checksum, and is written once:

    job.json                      the settings that are the same on all clusters; the first that comes puts it there
    round-000012/cluster-1.json   the differences that a cluster has sent: its weight, the file, its size and SHA-256
    round-000012/cluster-1-5f2ab31c90d1e4f7.bin
    round-000012/done.json        the clusters that took part; after this, nobody can
    state-000020.json             the outer parameters and momentum after that round, for a cluster that comes later
    state-000020-9d10c3a1f2b44e57.bin

A file is there before the record that names it, and a record appears whole or not at all: bucket.BucketFolder.create.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from training import manifest
from training.store.bucket import BucketFolder, StoreError

FORMAT = 1
_ROUND = re.compile(r"round-(\d{6,})")
_STATE = re.compile(r"state-(\d{6,})\.json")


class Rounds:
    """The records and files in the bucket; counts the bytes. The methods raise the cloud library's errors, and
    StoreError for a record or file that is damaged."""

    def __init__(self, place: BucketFolder) -> None:
        self.place = place
        self.sent = self.received = 0
        """Bytes so far."""

    def agree(self, settings: Mapping[str, Any]) -> str:
        """Put the job's settings there, or compare them with those that are: empty, or `KEY = VALUE; allowed: ...`."""
        self._create(self.place, "job.json", {"format": FORMAT, "settings": settings})
        found = self._record(self.place, "job.json")
        if found is None or found.get("format") != FORMAT:
            return f"its job.json has format {(found or {}).get('format')}; allowed: {FORMAT}"
        there = found["settings"]
        for key in sorted({*settings, *there}):
            if settings.get(key) != there.get(key):
                return f"{key} = {_shown(settings.get(key))}; allowed: {_shown(there.get(key))}"
        return ""

    def publish(self, number: int, cluster: int, raw: bytes, about: Mapping[str, Any]) -> dict[str, Any]:
        """Put a cluster's differences of a round there, unless they are: what was there first counts. Returns their
        record."""
        folder, name = self._folder(number), f"cluster-{cluster}"
        found = self._record(folder, f"{name}.json")
        if found is None:
            self._create(folder, f"{name}.json", {**about, **self._file(folder, name, raw)})
            found = self._record(folder, f"{name}.json")
        if found is None:
            raise StoreError(f"{folder.url}/{name}.json: it is not there after it was written")
        return found

    def published(self, number: int, cluster: int) -> dict[str, Any] | None:
        """The record of a cluster's differences; None: they are not there."""
        return self._record(self._folder(number), f"cluster-{cluster}.json")

    def difference(self, number: int, record: Mapping[str, Any]) -> bytes | None:
        """The differences of a record; None if they have been removed."""
        return self._checked(self._folder(number), record)

    def close(self, number: int, clusters: Sequence[int]) -> list[int]:
        """End a round with these clusters, unless it has ended: returns those that took part."""
        self._create(self._folder(number), "done.json", {"round": number, "clusters": sorted(clusters)})
        found = self.closed(number)
        if found is None:
            raise StoreError(f"{self._folder(number).url}/done.json: it is not there after it was written")
        return found

    def closed(self, number: int) -> list[int] | None:
        """The clusters that took part in a round; None: it has not ended."""
        found = self._record(self._folder(number), "done.json")
        return None if found is None else [int(each) for each in found["clusters"]]

    def newest_closed(self) -> int:
        """The last round that has ended; 0: none has."""
        numbers = sorted(int(match[1]) for name in self.place.folders() if (match := _ROUND.fullmatch(name)))
        return next((number for number in reversed(numbers) if self.closed(number) is not None), 0)

    def publish_state(self, number: int, raw: bytes) -> None:
        """Put the outer state after a round there."""
        name = f"state-{number:06d}"
        if self._record(self.place, f"{name}.json") is None:
            self._create(self.place, f"{name}.json", {"round": number, **self._file(self.place, name, raw)})

    def states(self) -> list[int]:
        """The rounds whose outer states are there, the oldest first."""
        return sorted(int(match[1]) for name in self.place.files() if (match := _STATE.fullmatch(name)))

    def state(self, number: int) -> bytes | None:
        """The outer state after a round; None if it was removed."""
        record = self._record(self.place, f"state-{number:06d}.json")
        return None if record is None else self._checked(self.place, record)

    def remove_before(self, number: int) -> None:
        """Remove outer states of before a round, and what was sent for it and for earlier ones. The records of who took
        part stay."""
        for name in list(self.place.files()):
            if (match := re.match(r"state-(\d{6,})[.-]", name)) and int(match[1]) < number:
                self.place.remove(name)
        for name in self.place.folders():
            if (match := _ROUND.fullmatch(name)) and int(match[1]) <= number:
                folder = self.place.at(name)
                for file in folder.files():
                    if file != "done.json":
                        folder.remove(file)

    def _folder(self, number: int) -> BucketFolder:
        return self.place.at(f"round-{number:06d}")

    def _file(self, folder: BucketFolder, name: str, raw: bytes) -> dict[str, Any]:
        """Write a file with its checksum in its name, so that no other content is ever written under this name."""
        digest = hashlib.sha256(raw).hexdigest()
        file = f"{name}-{digest[:16]}.bin"
        folder.write(file, raw)
        self.sent += len(raw)
        return {"file": file, "bytes": len(raw), "sha256": digest}

    def _checked(self, folder: BucketFolder, record: Mapping[str, Any]) -> bytes | None:
        raw = folder.read(str(record["file"]))
        if raw is not None:
            self.received += len(raw)
            if hashlib.sha256(raw).hexdigest() != record["sha256"]:
                raise StoreError(f"{folder.url}/{record['file']}: altered: its checksum does not match the record's")
        return raw

    def _create(self, folder: BucketFolder, name: str, content: Mapping[str, Any]) -> None:
        text = manifest.render(content).encode()
        folder.create(name, text)
        self.sent += len(text)

    def _record(self, folder: BucketFolder, name: str) -> dict[str, Any] | None:
        raw = folder.read(name)
        if raw is None:
            return None
        self.received += len(raw)
        try:
            return manifest.parse_bytes(raw, f"{folder.url}/{name}")
        except manifest.TokenError as error:
            raise StoreError(str(error)) from None


def _shown(value: Any) -> str:
    return "not there" if value is None else json.dumps(value)
