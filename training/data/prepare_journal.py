"""An unfinished token set: the files written so far, in a folder inside the set's, and how to continue after a kill.

    DIR/.prepare/journal.json     the settings, and the lengths up to which train.bin and val.bin are on disk
    DIR/.prepare/{train,val}.bin  may be longer than the journal says, never shorter
    DIR/.prepare/vocab.tiktoken

After a kill, the next run with the same settings and input cuts the files to these lengths, verifies their checksums
and continues there. At the end the files are renamed, the manifest is written last, and the folder is removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from training import manifest
from training.data.encode import Encoded
from training.data.vocabulary import Vocabulary
from training.data.vocabulary import read as read_ranks
from training.manifest import ITEM_SIZE, NAME, RANKS, SPLITS, TOKENIZER, WORK, TokenError

COMMIT = 5.0  # seconds of work that a kill may lose
FILES = (*(f"{split}.bin" for split in SPLITS), RANKS, TOKENIZER)


class PrepareJournal:
    """The unfinished set of one folder. It is locked from the start until `close`, as two processes would mix their
    tokens."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Lock the folder until `close`. TokenError if it cannot be made or another process has it."""
        self.folder, self.settings = folder, dict(settings)
        self.work = folder / WORK
        self.files: dict[str, BinaryIO] = {}
        self.digests = {split: hashlib.sha256() for split in SPLITS}
        self.journal: dict[str, Any] = {}
        self.note = ""  # for the user: what happened to earlier work
        self.lock = ExitStack()
        self.lock.enter_context(manifest.locked(folder))
        self.committed = time.monotonic()

    def close(self) -> None:
        """Close the files and give up the lock. What came after the last `commit` is made again by the next run."""
        for file in self.files.values():
            with suppress(OSError):  # a full disk, reported already
                file.close()
        self.lock.close()

    def occupied(self) -> bool:
        """Whether the folder has a token set of any kind, which must not be overwritten."""
        names = (NAME,) if self.work.exists() else (NAME, *FILES)
        return any((self.folder / name).exists() for name in names)

    def begin(self) -> None:
        """Open the files to continue earlier work, or empty. Removes a set that is there: check `occupied` first."""
        if self.occupied() or not self.resume():
            self.restart()

    def open_files(self) -> None:
        """Open train.bin and val.bin to append to them."""
        for split in SPLITS:
            self.files[split] = (self.work / f"{split}.bin").open("ab")

    @property
    def engine_error(self) -> str:
        """Why this work was started over with tiktoken; empty if it was not."""
        return str(self.journal.get("engine_error", ""))

    def resume(self) -> bool:
        """Read the journal and cut the files to its lengths; False if there is nothing that can be continued."""
        if not self.work.exists():
            return False
        try:
            journal = manifest.parse(self.work / "journal.json")
            if journal["settings"] != self.settings:
                if journal["units"]:
                    self.note = "the unfinished work has other input or settings: starting over"
                return False
            for name in FILES:  # move back those that already had their final names when the process was killed
                if (self.folder / name).exists() and not (self.work / name).exists():
                    (self.folder / name).rename(self.work / name)
            for split in SPLITS:
                self.digests[split] = self.cut(split, journal["splits"][split])
            learned = journal["vocabulary"]
            if learned and manifest.checksum(self.work / learned.get("file", RANKS)) != learned["sha256"]:
                raise TokenError("its vocabulary was altered")
        except (TokenError, OSError) as error:
            self.note = f"the unfinished work cannot be used ({error}): starting over"
            return False
        self.journal = journal
        self.open_files()
        self.note = f"continuing after {journal['units']:,} documents" if journal["units"] else ""
        return True

    def cut(self, split: str, facts: Mapping[str, Any]) -> Any:
        """Cut a file to the length in the journal; returns its SHA-256 so far. TokenError if it was altered."""
        path = self.work / f"{split}.bin"
        size = rest = facts["tokens"] * ITEM_SIZE[self.settings["dtype"]]
        digest = hashlib.sha256()
        with path.open("r+b") as file:
            while rest and (chunk := file.read(min(rest, 1 << 20))):
                digest.update(chunk)
                rest -= len(chunk)
            if digest.hexdigest() != facts["sha256"]:
                raise TokenError(f"{path.name} was altered")
            file.truncate(size)
        return digest

    def restart(self, engine_error: str = "") -> None:
        """Start with empty files; `engine_error`: why the work so far is discarded and gigatoken not used again."""
        for file in self.files.values():
            file.close()
        # The journal is written before the files of an older set are removed, so that the folder never looks complete.
        self.digests = {split: hashlib.sha256() for split in SPLITS}
        empty = {"tokens": 0, "documents": 0, "bytes_of_text": 0}
        splits = {split: {**empty, "file": f"{split}.bin"} for split in SPLITS}
        self.journal = {"settings": self.settings, "units": 0, "cost": 0, "vocabulary": None, "splits": splits}
        self.journal["engine_error"] = engine_error
        self.work.mkdir(exist_ok=True)
        self.write_journal()
        manifest.sync_folder(self.folder)
        for name in (NAME, *FILES):
            (self.folder / name).unlink(missing_ok=True)
            (self.work / name).unlink(missing_ok=True)
        self.open_files()
        manifest.sync_folder(self.work)

    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary that was trained before the kill; None if there is none."""
        learned = self.journal["vocabulary"]
        return replace(read_ranks(self.work / RANKS), name=learned["name"]) if learned else None

    def save_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Write the vocabulary's file, then its name and checksum into the journal, so that `vocabulary` finds it after
        a kill."""
        manifest.publish(self.work / vocabulary.file, vocabulary.text())
        learned = {"name": vocabulary.name, "sha256": vocabulary.digest(), "file": vocabulary.file}
        self.journal["vocabulary"] = learned
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
        """Sync the files, then write the journal: what is in it then outlives a kill."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        self.write_journal()
        self.committed = time.monotonic()

    def write_journal(self) -> None:
        """Replace journal.json. The files must be on disk up to the lengths in it."""
        manifest.publish(self.work / "journal.json", manifest.render({**self.journal, "splits": self.splits()}))

    def splits(self) -> dict[str, Any]:
        """Name, checksum and counts of each split's file so far, as in the manifest."""
        facts = self.journal["splits"]
        return {split: {**facts[split], "sha256": self.digests[split].hexdigest()} for split in SPLITS}

    def finish(self, content: Mapping[str, Any]) -> None:
        """Rename everything to its final name and write the manifest last."""
        self.commit()
        for name in (*(f"{split}.bin" for split in SPLITS), self.journal["vocabulary"].get("file", RANKS)):
            (self.work / name).replace(self.folder / name)
        manifest.sync_folder(self.folder)
        manifest.publish(self.work / NAME, manifest.render(content))
        (self.work / NAME).replace(self.folder / NAME)
        manifest.sync_folder(self.folder)
        self.clear()

    def clear(self) -> None:
        """Remove the folder of the unfinished work, if there is one."""
        if self.work.exists():
            shutil.rmtree(self.work)
