"""Make a stack's lost nodes again, with the stack's own engine, and bring them the job's code and data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from invoke.exceptions import Exit

from fabfile.job_file import setting
from fabfile.output import say
from fabfile.remote.deploy import deploy
from fabfile.remote.fleet import Fleet
from fabfile.remote.known_hosts import SshError
from fabfile.stacks import pulumi_cli, work_lost
from fabfile.stacks.capacity import Shortage
from fabfile.targets import load_any
from fabfile.token_sets import token_set
from fabfile.verbs.up import pulumi_up
from fabfile.verbs.wait import until_ready
from infra.inventory import SshCluster

_CLOUD_SECONDS, _LOCAL_SECONDS = 900.0, 90.0
"""How long new nodes may take to boot, in a cloud and on this machine."""
_MACHINES = ("aws:ec2/instance:Instance", "azure-native:compute:VirtualMachine", "pulumi-python:dynamic/local:Node")
"""Beginnings of the types of resources that are nodes; a node's other resources follow from it."""


class NoRoom(Exception):
    """The cloud has no capacity, or the account no quota, for the nodes: one line."""


class NotReplaced(Exception):
    """The nodes could not be made again: one line."""


def make_again(stack: str, facts: Mapping[str, Any], names: Collection[str], gone: Collection[str]) -> None:
    """Delete these nodes and make them again; `gone`: those of them whose machines have ended. Refuses to touch any
    other node. Raises NoRoom, NotReplaced, KeyboardInterrupt, and Exit for a stack that somebody has destroyed."""
    pulumi_cli.read_state_again()
    pulumi_cli.stack_output(stack)
    others = [name for name in work_lost.nodes_that_go(stack, facts["cloud"]) if name not in names]
    if others:
        why = "its nodes differ from its configuration, or they have just ended"
        raise NotReplaced(f"`fab up` would also replace {', '.join(others)}: {why}")
    _up(stack, facts, [name for name in names if name not in gone])


def make(stack: str, facts: Mapping[str, Any]) -> None:
    """Make the whole cluster what its configuration says. Raises as `make_again`."""
    _up(stack, facts, ())


def _up(stack: str, facts: Mapping[str, Any], replaced: Sequence[str]) -> None:
    """`replaced`: nodes that the engine would leave alone by itself."""
    if pulumi_cli.has_pulumi():
        urns = [urn for name in replaced for urn in _urns(stack, name)]
        options = ["--non-interactive", *pulumi_cli.YES, *(word for urn in urns for word in ("--replace", urn))]
        update = pulumi_up(stack, facts, options)
        code, shortages = update.code, update.shortages
    else:
        words = [word for name in replaced for word in ("--replace", name)]
        code, shortages = pulumi_cli.follow(pulumi_cli.module("state.engine", "up", stack, *words)), ()
    if code == pulumi_cli.INTERRUPTED:
        raise KeyboardInterrupt
    if shortages:
        raise NoRoom(_line(shortages[0]))
    if code != 0:
        raise NotReplaced(f"`up` ended with exit code {code}; its last lines say why")


def _line(shortage: Shortage) -> str:
    return f"{shortage.resource}: {shortage.code}: {shortage.why}"


def _urns(stack: str, name: str) -> list[str]:
    """The machine of a node in Pulumi's state: none, if it is not there."""
    urns = [str(entry.get("urn", "")) for entry in pulumi_cli.exported(stack)]
    return [urn for urn in urns if urn.endswith(f"::{name}") and urn.split("::")[-2].startswith(_MACHINES)]


def equip(
    stack: str,
    facts: Mapping[str, Any],
    names: Collection[str],
    job: str,
    code: str,
    without: Collection[str] = (),
) -> None:
    """Wait until the nodes are ready and know each other, then bring the new ones what the job needs: its code and its
    data, from another node. `job`: its job.toml; `code`: its programs' folder, the same on every node; `without`: nodes
    that are in trouble, and are not waited for. Raises NotReplaced."""
    try:
        cluster = load_any(stack, "")
        if isinstance(cluster, SshCluster):
            cluster = replace(cluster, nodes=tuple(node for node in cluster.nodes if node.name not in without))
        until_ready(cluster, _CLOUD_SECONDS if facts["cloud"] else _LOCAL_SECONDS)
        if isinstance(cluster, SshCluster):
            _bring(cluster, names, job, code)
    except (Exit, SshError) as error:
        why = str(getattr(error, "message", None) or error) or "a step on the new nodes failed"
        raise NotReplaced(" ".join(why.split())) from None


def _bring(cluster: SshCluster, names: Collection[str], job: str, code: str) -> None:
    new = [node for node in cluster.nodes if node.name in names]
    source = next((node for node in cluster.nodes if node.name not in names), None)
    if not new or source is None:
        return
    path = setting(job, "data", "path")
    ranks = sum(node.slots for node in cluster.nodes)
    with Fleet(cluster) as fleet:
        for folder in (code, path):
            if folder and not token_set.is_shared(folder, cluster.shared_dir):
                say(f"copying {folder} from {source.name} to {', '.join(node.name for node in new)}")
                token_set.run(fleet, new, token_set.own(folder), quiet=True)
                token_set.run(fleet, [source], token_set.copies(folder, new), quiet=True)
        for name, answer in deploy(fleet, new, job, ranks).items():
            if answer.problem:
                raise Exit(f"{name}: {answer.problem}", code=1)
