"""The machines of a managed job whose manager is on its head: an operator with the stack's state makes them.

The head has neither the stack's state nor the account's rights, and must not have them: every program of the job would
have them as well. So the manager writes down what it wants (node/job/manager_service.py), and whoever runs `fab train
--managed --on head` on a machine from which `fab up` works reads it and does it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fabfile.managed.machines import Needs
from fabfile.managed.replacement import NoRoom, NotReplaced, equip
from fabfile.remote.known_hosts import host_pattern
from fabfile.targets import parse
from infra.inventory import SshCluster, to_object
from node.job import files
from node.job.manager_service import FOLDER, INVENTORY, MAKER, REPLY, REQUEST

MADE, NO_ROOM, NOT_MADE = "made", "no room", "not made"
"""What comes of a request."""
_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
_POLL = 1.0
_TAKEN = 300.0
"""Seconds for which who makes machines may be silent meanwhile: an `up` goes on while a network does not."""


class Asked:
    """The machines as the job's head knows them. `run_dir`: the job's directory."""

    def __init__(self, run_dir: Path, facts: Mapping[str, Any], known_hosts: Path = _KNOWN_HOSTS) -> None:
        self._own, self._job, self._facts, self._known_hosts = run_dir / FOLDER, run_dir.name, facts, known_hosts
        self._seen = self._now()

    def cluster(self) -> SshCluster:
        """The operator's inventory, with the keys that the nodes have for each other: these follow an `up` and a `wait`
        from anywhere."""
        self._seen = self._now()
        cluster = parse(files.text(self._own / INVENTORY), str(self._own / INVENTORY))
        lines = [
            line.split(None, 1) for line in files.text(self._known_hosts).splitlines() if line[:1] not in ("", "#")
        ]
        keys = {name: line[1].strip() for line in lines if len(line) == 2 for name in line[0].split(",")}
        nodes = [
            replace(node, host_key=keys.get(host_pattern(node.name, node.ssh_port), node.host_key))
            for node in cluster.nodes
        ]
        return replace(cluster, nodes=tuple(nodes))

    def has_changed(self) -> bool:
        return self._now() != self._seen

    def _now(self) -> list[int]:
        return [path.stat().st_mtime_ns for path in (self._own / INVENTORY, self._known_hosts) if path.exists()]

    def nobody(self) -> str:
        maker = files.read(self._own / MAKER)
        if float(maker.get("until", 0.0)) > time.time():
            return ""
        again = f"fab train --resume {self._job} --managed --on head"
        return f"it is made again as soon as somebody who can do that is there: {again}"

    def make_again(self, names: Collection[str], gone: Collection[str], needs: Needs) -> None:
        number = secrets.token_hex(8)
        asked = {"id": number, "names": [*names], "gone": [*gone], "needs": _plain(needs)}
        files.write(self._own / REQUEST, asked)
        try:
            reply = self._reply(number)
        finally:
            (self._own / REQUEST).unlink(missing_ok=True)
        if reply["result"] == NO_ROOM:
            raise NoRoom(reply["why"])
        if reply["result"] != MADE:
            raise NotReplaced(reply["why"])

    def _reply(self, number: str) -> files.Record:
        while True:
            reply = files.read(self._own / REPLY)
            if reply.get("id") == number:
                return reply
            maker = files.read(self._own / MAKER)
            if float(maker.get("until", 0.0)) + _TAKEN < time.time():
                who = maker.get("who", "whoever made it")
                raise NotReplaced(f"{who} has gone meanwhile")
            time.sleep(_POLL)

    def equip(self, needs: Needs) -> None:
        equip(self.cluster, self._facts, needs.bring, needs.job, needs.code, needs.without)


def _plain(needs: Needs) -> dict[str, Any]:
    found = asdict(needs)
    return {key: value if isinstance(value, str) else [*value] for key, value in found.items()}


def as_the_head_sees(cluster: SshCluster) -> dict[str, Any]:
    """The inventory for the head, as JSON's object: private addresses, and nothing of the operator's machine."""
    nodes = tuple(replace(node, ssh_host="", console="", control_group="") for node in cluster.nodes)
    return to_object(replace(cluster, nodes=nodes, identity_file="", jump_host=""))
