"""Who a pod of a job is, from its environment, and where a job's supervisor listens."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from node.job import files


@dataclass(frozen=True)
class Pod:
    """A pod of the job."""

    index: int
    """0: the first, which supervises."""
    name: str
    ip: str
    machine: str
    """The node of Kubernetes that it is on: our name of the node, too."""
    host_ip: str
    """That machine's own address, at which its kubelet listens."""

    @classmethod
    def own(cls, environment: Mapping[str, str] = os.environ) -> Pod:
        """This pod. RANK is its number: the training operator sets it, as each pod is told to be one process, and for a
        TrainJob our manifest does."""
        return cls(
            index=int(environment.get("RANK") or 0),
            name=environment["TRAINYARD_POD"],
            ip=environment["TRAINYARD_POD_IP"],
            machine=environment["TRAINYARD_MACHINE"],
            host_ip=environment["TRAINYARD_HOST_IP"],
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Pod:
        """The reverse of `to_record`. ValueError for anything else: it may come from anybody who connects."""
        index, texts = record.get("index"), [record.get(name) for name in ("name", "ip", "machine", "host_ip")]
        if not isinstance(index, int) or isinstance(index, bool):
            raise ValueError("no pod's number")
        if not all(isinstance(text, str) and 0 < len(text) < 254 and text.isprintable() for text in texts):
            raise ValueError("no pod's names and addresses")
        return cls(index, *map(str, texts))

    def to_record(self) -> files.Record:
        """What `from_record` reads: every field by its name, as JSON can have it."""
        return asdict(self)


@dataclass(frozen=True)
class Address:
    """Where a job's supervisor listens: supervisor.json in the job's directory, which all pods see."""

    address: str
    port: int
    token: str
    """Who knows it may say that it is a pod of the job; new with every supervisor."""
    pod: Pod

    @classmethod
    def read(cls, run_dir: Path) -> Address | None:
        """The supervisor's address; None if it has not written one."""
        record = files.read(run_dir / _FILE)
        try:
            pod = Pod.from_record(record["pod"])
            return cls(str(record["address"]), int(record["port"]), str(record["token"]), pod)
        except (KeyError, TypeError, ValueError):
            return None

    @staticmethod
    def forget(run_dir: Path) -> None:
        """Remove the address of an earlier supervisor."""
        (run_dir / _FILE).unlink(missing_ok=True)

    def write(self, run_dir: Path) -> None:
        """Write it to a file that only its owner reads, and rename that into place."""
        temporary = run_dir / f"{_FILE}.{self.token[:8]}"
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(run_dir / _FILE)


_FILE = "supervisor.json"
