"""TensorBoard on a cluster's head, for as long as somebody looks at it."""

from __future__ import annotations

import re
import shlex
import threading

from invoke.exceptions import Exit

from fabfile.launchers import VENV
from fabfile.output import say
from fabfile.remote.command import Result, follow, guarded
from fabfile.remote.fleet import Connections
from fabfile.remote.known_hosts import SshError
from fabfile.tunnel.dial import Dialler
from fabfile.workdir import requirements
from infra.inventory import Node

_PACKAGE = "tensorboard==2.20.0\n"
"""What is installed beside an image that has none; the version of bootstrap/versions.env."""
_RELOAD = 5  # seconds after which it looks for new events
_START = 120.0  # seconds in which it must be up
_AGAIN = 2.0  # seconds before it is started again
_LOOK = 60.0
_MAIN = """
import importlib.util, sys, types
from importlib.metadata import entry_points
if importlib.util.find_spec("pkg_resources") is None:
    stand_in = types.ModuleType("pkg_resources")
    plugins = lambda group: [types.SimpleNamespace(resolve=one.load) for one in entry_points(group=group)]
    stand_in.iter_entry_points = plugins
    sys.modules["pkg_resources"] = stand_in
from tensorboard.main import run_main
run_main()
"""
"""TensorBoard 2.20 asks pkg_resources for its plug-ins, which setuptools has left out since its version 82."""
_ADDRESS = re.compile(r"TensorBoard \S+ at http://[^:/]+:(\d+)")


class TensorBoard:
    """Runs on a node over a run directory, on the node's loopback; is started again if its connection was lost."""

    def __init__(self, dialler: Dialler, python: str, folder: str) -> None:
        options = f"--host 127.0.0.1 --port 0 --load_fast=false --reload_interval {_RELOAD}"
        self._command = f"exec {python} -c {shlex.quote(_MAIN)} --logdir {shlex.quote(folder)} {options}"
        self._dialler = dialler
        self._up, self._stopped = threading.Event(), threading.Event()
        self._why = ""
        self.port = 0
        """Where it listens now, on the node."""

    def start(self) -> None:
        """Start it, and wait until it listens. Exit 1 says why it does not."""
        threading.Thread(target=self._keep, daemon=True).start()
        self._up.wait(_START)
        if not self.port:
            self.stop()
            why = self._why or f"it does not listen after {_START:g} s"
            raise Exit(f"{self._dialler.node.name}: TensorBoard was not started: {why}", code=1)

    def stop(self) -> None:
        """Do not start it again; it ends with its connection."""
        self._stopped.set()

    def _keep(self) -> None:
        """Run it until `stop`, in a thread of its own, which no Ctrl-C interrupts."""
        said = ""
        while not self._stopped.is_set():
            why = self._run()
            if not self.port:  # it has never listened
                self._why = why
                self._up.set()
                return
            if not self._stopped.is_set() and why != said:
                said = why
                say(f"{self._dialler.node.name}: TensorBoard has ended: {why}; it is started again")
            self._stopped.wait(_AGAIN)

    def _run(self) -> str:
        """Run it to its end; returns why it ended."""
        node = self._dialler.node.name
        try:
            channel = self._dialler.session()
            channel.exec_command(guarded(self._command))
            result = follow(node, channel, on_line=self._line)
        except (SshError, OSError) as error:
            return str(error)
        return result.why

    def _line(self, _node: str, _stream: str, line: str) -> None:
        if found := _ADDRESS.search(line):
            self.port = int(found[1])
            self._up.set()


def python_with_it(fleet: Connections, node: Node) -> str:
    """The Python on a node that has TensorBoard: the image's, or that of an environment which is made for it."""
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tensorboard') is None)"
    result = _ask(fleet, node, f"{VENV}/python -c {shlex.quote(find)}")
    if result.exited not in (0, 1):
        raise Exit(f"{node.name}: {result.why}", code=1)
    if result.ok:
        return f"{VENV}/python"
    say(f"{node.name}: its image has no TensorBoard: {_PACKAGE.strip()} is installed for it")
    made = requirements.ensure(fleet, [node], _PACKAGE, requirements.folder_of(fleet.cluster))
    return shlex.quote(f"{made[node.name]}/python")


def has_events(fleet: Connections, node: Node, folder: str) -> bool:
    """Whether a run has written anything that TensorBoard shows."""
    found = _ask(fleet, node, f"find {shlex.quote(folder)} -name '*tfevents*' -print -quit")
    return bool(found.stdout.strip())


def _ask(fleet: Connections, node: Node, command: str) -> Result:
    return fleet.run(command, nodes=[node], timeout=_LOOK)[node.name]
