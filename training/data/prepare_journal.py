"""An unfinished token set: the files written so far, in a folder inside the set's, and how to continue after a kill.

    DIR/.prepare/journal.json     the settings, and the lengths up to which train.bin and val.bin are on disk
    DIR/.prepare/{train,val}.bin  may be longer than the journal says, never shorter
    DIR/.prepare/vocab.tiktoken

After a kill, the next run with the same settings and input cuts the files to these lengths, verifies their checksums
and continues there. At the end the files are renamed to their final names, the manifest is written last, and the folder
is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from training import manifest
from training.data.encode import Encoded
from training.data.vocabulary import Vocabulary
from training.data.vocabulary import read as read_ranks
from training.manifest import ITEM_SIZE, NAME, RANKS, SPLITS, WORK, TokenError

COMMIT = 5.0  # seconds of work that a kill may lose
FILES = (*(f"{split}.bin" for split in SPLITS), RANKS)


class PrepareJournal:
    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Lock the folder until `close`. TokenError if it cannot be made or another process has it."""
        self.folder, self.settings = folder, dict(settings)
        self.work = folder / WORK
        self.files: dict[str, BinaryIO] = {}
        self.digests = {split: hashlib.sha256() for split in SPLITS}
        self.journal: dict[str, Any] = {}
        self.note = ""
        """A line for the user on what happened to earlier work."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise TokenError(f"{folder}: {error.strerror}") from error
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self.lock)
            raise TokenError(f"{folder}: another prepare is writing there") from error
        self.committed = time.monotonic()

    def close(self) -> None:
        for file in self.files.values():
            with suppress(OSError):  # a full disk, reported already
                file.close()
        os.close(self.lock)

    def occupied(self) -> bool:
        """Whether the folder has a token set of any kind, which must not be overwritten."""
        there = any((self.folder / name).exists() for name in (NAME, *FILES))
        return there and ((self.folder / NAME).exists() or not self.work.exists())

    def begin(self) -> None:
        """Open the files to continue earlier work, or empty. Removes a set that is there: check `occupied` first."""
        if self.occupied() or not self.resume():
            self.restart()
        self.open_files()

    def open_files(self) -> None:
        for split in SPLITS:
            self.files[split] = (self.work / f"{split}.bin").open("ab")

    def start_over(self, engine_error: str) -> None:
        """Start over with the same vocabulary, because the fast engine gives wrong tokens for this corpus."""
        vocabulary = self.vocabulary()
        for file in self.files.values():
            file.close()
        self.restart()
        self.journal["engine_error"] = engine_error
        if vocabulary:
            self.keep_vocabulary(vocabulary)
        self.open_files()

    @property
    def engine_error(self) -> str:
        """Why an earlier run of this work switched to tiktoken; empty if it did not."""
        return str(self.journal.get("engine_error", ""))

    def resume(self) -> bool:
        """Read the journal and cut the files to its lengths; False if there is nothing that can be continued."""
        if not self.work.exists():
            return False
        try:
            journal = manifest.parse(self.work / "journal.json")
            if journal["settings"] != self.settings:
                if journal["units"]:
                    self.note = "the unfinished work there is of other input or settings: starting over"
                return False
            self.undo_renames()
            for split in SPLITS:
                self.digests[split] = self.cut(split, journal["splits"][split])
            learned = journal["vocabulary"]
            if learned and manifest.checksum(self.work / RANKS) != learned["sha256"]:
                raise TokenError("its vocabulary was altered")
        except (TokenError, OSError) as error:
            self.note = f"the unfinished work there cannot be used ({error}): starting over"
            return False
        self.journal = journal
        self.note = f"going on after {self.units:,} documents" if self.units else ""
        return True

    def undo_renames(self) -> None:
        """Move back the files that already had their final names when the process was killed."""
        for name in FILES:
            if (self.folder / name).exists() and not (self.work / name).exists():
                (self.folder / name).rename(self.work / name)

    def cut(self, split: str, facts: Mapping[str, Any]) -> Any:
        """Cut a file to the length in the journal; returns its SHA-256 so far. TokenError if it was altered."""
        path = self.work / f"{split}.bin"
        size = facts["tokens"] * ITEM_SIZE[self.settings["dtype"]]
        digest, left = hashlib.sha256(), size
        with path.open("r+b") as file:
            while left and (chunk := file.read(min(left, 1 << 20))):
                digest.update(chunk)
                left -= len(chunk)
            if digest.hexdigest() != facts["sha256"]:
                raise TokenError(f"{path.name} was altered")
            file.truncate(size)
        return digest

    def restart(self) -> None:
        """Start with empty files."""
        # The journal is written before the files of an older set are removed, so that the folder never looks complete.
        self.digests = {split: hashlib.sha256() for split in SPLITS}
        empty = {"tokens": 0, "documents": 0, "bytes_of_text": 0}
        self.journal = {"settings": self.settings, "units": 0, "cost": 0, "vocabulary": None}
        self.journal["splits"] = {split: dict(empty) for split in SPLITS}
        self.work.mkdir(exist_ok=True)
        self.write_journal()
        manifest.sync_folder(self.folder)
        for name in (NAME, *FILES):
            (self.folder / name).unlink(missing_ok=True)
            (self.work / name).unlink(missing_ok=True)
        for split in SPLITS:
            (self.work / f"{split}.bin").touch()
        manifest.sync_folder(self.work)

    @property
    def units(self) -> int:
        return int(self.journal["units"])

    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary that was trained before the kill; None if there is none."""
        learned = self.journal["vocabulary"]
        return replace(read_ranks(self.work / RANKS), name=learned["name"]) if learned else None

    def keep_vocabulary(self, vocabulary: Vocabulary) -> None:
        manifest.publish(self.work / RANKS, vocabulary.text())
        self.journal["vocabulary"] = {"name": vocabulary.name, "sha256": vocabulary.digest()}
        self.write_journal()

    def append(self, encoded: Encoded) -> None:
        """Write a batch's tokens; every COMMIT seconds they are synced and the journal is written."""
        for split, part in encoded.parts.items():
            data = part.tokens.tobytes()
            self.files[split].write(data)
            self.digests[split].update(data)
            facts = self.journal["splits"][split]
            facts["tokens"] += len(part.tokens)
            facts["documents"] += part.documents
            facts["bytes_of_text"] += part.bytes_of_text
        self.journal["units"] += encoded.units
        self.journal["cost"] += encoded.cost
        if time.monotonic() - self.committed >= COMMIT:
            self.commit()

    def commit(self) -> None:
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        self.write_journal()
        self.committed = time.monotonic()

    def write_journal(self) -> None:
        manifest.publish(self.work / "journal.json", manifest.render({**self.journal, "splits": self.splits()}))

    def splits(self) -> dict[str, Any]:
        """Name, checksum and counts of each split's file so far, as in the manifest."""
        own = {split: {"file": f"{split}.bin", "sha256": self.digests[split].hexdigest()} for split in SPLITS}
        return {split: {**self.journal["splits"][split], **own[split]} for split in SPLITS}

    def finish(self, content: Mapping[str, Any]) -> None:
        """Rename everything to its final name and write the manifest last."""
        self.commit()
        for name in FILES:
            (self.work / name).replace(self.folder / name)
        manifest.sync_folder(self.folder)
        manifest.publish(self.work / NAME, manifest.render(content))
        (self.work / NAME).replace(self.folder / NAME)
        manifest.sync_folder(self.folder)
        self.clear()

    def clear(self) -> None:
        if self.work.exists():
            shutil.rmtree(self.work)
