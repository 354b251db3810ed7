"""The ranks that a keeper starts itself, where no launcher's program does: in a pod of Kubernetes, and over SSH in an
elastic job or one without the head.

The order is a line of JSON, {"argv": [...], "environment": {...}}, as fabfile/launchers/keepers.py makes it. Each of
the node's slots gets RANK and LOCAL_RANK beside it. With "places" only these ranks are started.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fabfile.launchers import nodes_from_text
from fabfile.launchers.program import SLOT, placed

Event = dict[str, Any]
_SECRETS = "WANDB_"
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class OwnRanks:
    """The wrappers of this node's ranks (node/job/rank_wrapper.py). They are killed when the thread ends that makes
    this object, and the ranks with them."""

    def __init__(self, node: str, folder: Path, send: Callable[[Event], None]) -> None:
        """`folder` has the records of the node's ranks. What their wrappers print, which is little, goes to `send` as
        the ranks' lines."""
        self._node, self._folder, self._send = node, folder, send
        self._last: dict[int, str] = {}
        self._wrappers: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, order: str) -> list[int]:
        """Start ranks, and return their numbers. Of one that was there before, the records are removed first."""
        asked = json.loads(order)
        self._is_program = "TRAINYARD_PER" in asked["environment"]
        per = asked["environment"].get("TRAINYARD_PER", SLOT)
        nodes = placed(nodes_from_text(asked["environment"]["TRAINYARD_NODES"]), per)
        places = [(each.name, local) for each in nodes for local in range(each.slots)]
        wanted = set(asked.get("places", range(len(places))))
        own = [(rank, local) for rank, (name, local) in enumerate(places) if name == self._node and rank in wanted]
        for rank, local in own:
            for record in self._folder.glob(f"rank-{rank}.*"):
                record.unlink()
            self._start(rank, local, asked["argv"], asked["environment"])
        return [rank for rank, _ in own]

    def _start(self, rank: int, local: int, argv: list[str], environment: dict[str, str]) -> None:
        # A tracker's key is rank 0's alone, as over SSH; a user's program has its secrets in every process.
        held_back = bool(rank) and not self._is_program
        inherited = {name: value for name, value in os.environ.items() if not (held_back and name.startswith(_SECRETS))}
        own = {"RANK": str(rank), "LOCAL_RANK": str(local)}
        wrapper = subprocess.Popen(
            argv,
            env={**inherited, **environment, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        self._wrappers[rank] = wrapper
        threading.Thread(target=self._hear, args=(rank, wrapper), daemon=True).start()

    def failed(self) -> list[Event]:
        """An event for each wrapper that has ended without a record of its rank."""
        events = []
        for rank, wrapper in list(self._wrappers.items()):
            code = wrapper.poll()
            if code is None:
                continue
            del self._wrappers[rank]
            if not (self._folder / f"rank-{rank}.json").exists():
                last = self._last.get(rank, "")
                events.append({"event": "rank", "rank": rank, "state": "exited", "code": code, "last": last})
        return events

    def _hear(self, rank: int, wrapper: subprocess.Popen[bytes]) -> None:
        assert wrapper.stdout
        for raw in wrapper.stdout:
            if line := raw.decode(errors="replace").strip():
                self._last[rank] = line
                self._send({"event": "log", "rank": rank, "time": time.time(), "text": line})


def end_with_parent() -> None:
    """Runs in a child before exec: it is killed when the thread ends that has started it."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
