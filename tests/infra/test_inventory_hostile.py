"""Whatever an inventory that is accepted says reaches ssh, a shell and mpirun's files as the very same value.

ssh itself and a real shell are asked what they understand: a value that became an option, a second line or a command
would show as another value, or as a file that should not be there.
"""

from __future__ import annotations

import ipaddress
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from inventory_values import ssh_clusters

from fabfile import launchers
from fabfile.launchers import HeadValues, Launch, plans
from fabfile.remote.known_hosts import known_hosts
from fabfile.remote.openssh import config_text, jump_node, options, user_of
from infra.inventory import Node, SshCluster, from_json, to_json

FEW = settings(  # each example starts a dozen programs
    max_examples=10,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def understood(argv: list[str]) -> dict[str, str]:
    """What ssh would do: its own words."""
    done = subprocess.run(["ssh", "-G", *argv], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def words(shell: str) -> list[str]:
    """What a shell makes of a command's text."""
    script = f"set -- {shell}\nprintf '%s\\0' \"$@\""
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=20, check=True, env={})
    return done.stdout.split("\0")[:-1]


def plain(address: str) -> str:
    """One spelling of a name or an address: ssh may write an IPv6 address in another."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address.lower()


def same(options: dict[str, str], cluster: SshCluster, node: Node) -> None:
    assert (plain(options["hostname"]), options["port"]) == (plain(node.address), str(node.ssh_port))
    assert options["user"] == user_of(cluster, node)
    assert (options["stricthostkeychecking"], options["globalknownhostsfile"]) == ("true", "/dev/null")
    assert (options["serveraliveinterval"], options["serveralivecountmax"]) == ("15", "4")
    assert "localcommand" not in options and options.get("remotecommand", "none") == "none"
    if cluster.identity_file:
        file = str(Path(cluster.identity_file).expanduser())
        assert options["identityfile"].replace("%%", "%").strip('"') == file
    jump = jump_node(cluster)
    if jump is None or jump == node:
        assert "proxycommand" not in options
        return
    argv = words(options["proxycommand"].replace("%%", "%"))
    assert argv[0] == "ssh" and argv[-3:-1] == ["-W", "[%h]:%p"] and argv[-1] == jump.address
    same(understood([*argv[1:-3], jump.address]), cluster, jump)


@FEW
@given(ssh_clusters())
def test_ssh_understands_the_values_of_the_inventory_and_nothing_else(home: Path, cluster: SshCluster) -> None:
    cluster = from_json(to_json(cluster))  # type: ignore[assignment]
    file = home / "ssh_config"
    file.write_text(config_text(cluster))
    for node in (cluster.nodes[0], cluster.nodes[-1]):
        same(understood([*options(cluster, node), node.address]), cluster, node)
        same(understood(["-F", str(file), f"{node.name}.{cluster.name}"]), cluster, node)


@FEW
@given(ssh_clusters())
def test_the_known_hosts_have_a_line_per_name_and_no_pattern(home: Path, cluster: SshCluster) -> None:
    lines = known_hosts(cluster).read_text().splitlines()[1:]
    expected = [node for node in cluster.nodes if node.host_key]
    assert len([line for line in lines if line]) == 2 * len(expected)
    for line in filter(None, lines):
        name, key = line.split(" ", 1)
        assert key in {node.host_key for node in expected} and not set(name) & set("*?!,|@#")


@FEW
@given(cluster=ssh_clusters(), name=st.sampled_from(launchers.NAMES))
def test_what_the_head_runs_has_the_words_of_its_plan(cluster: SshCluster, name: str) -> None:
    nodes = cluster.nodes[:1] if name == "torchrun" else cluster.nodes
    folder = f"{cluster.shared_dir or '/home/u'}/runs/demo-1"
    launch = Launch(id="demo-1", nodes=nodes, run_dir=folder, code="/srv/u/code", interface=cluster.interface)
    found = HeadValues(port="20001", interface="eth0", began="1", folder="/tmp/f")
    plan = plans.plan(name, launch, found)
    exports, _, command = plan.shell.partition("; exec ")
    assert words(command) == plan.argv
    script = exports.split("unset LD_PRELOAD; ")[1] + "; exec /usr/bin/env -0"
    made = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, timeout=20, check=True, env={})
    environment = dict(line.split("=", 1) for line in made.stdout.split("\0")[:-1])
    assert {key: environment[key] for key in plan.environment} == plan.environment
    assert [line.split(":")[0] for line in plan.hostfile.splitlines()] in ([], [node.name for node in nodes])


HOSTILE = [
    "$(touch ran)",
    "$HOME",
    "$PATH/x",
    "~/x; touch ran",
    "`touch ran`",
    "$MASTER_PORT; touch ran",
    "$FOLDERS",
    "a b",
]


@pytest.mark.parametrize("value", HOSTILE)
def test_only_the_known_variables_are_left_to_the_shell(value: str, tmp_path: Path) -> None:
    """Were a field to get past its form: neither what runs nor what `--dry-run` shows gives it to a shell."""
    nodes = (Node(name="node1", private_ip="10.0.0.1"), Node(name="node2", private_ip="10.0.0.2"))
    launch = Launch(id="demo-1", nodes=nodes, run_dir="~/runs/demo-1", code="~/code", interface=value)
    env = {"MASTER_PORT": "20001", "FOLDER": "/tmp/f", "HOME": "/srv/u", "BEGAN": "1"}

    def made(text: str) -> list[str]:
        script = f"set -- {text}\nprintf '%s\\0' \"$@\""
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, cwd=tmp_path, env=env, check=True)
        return done.stdout.split("\0")[:-1]

    plan = plans.plan("mpirun", launch, HeadValues())
    shown = made(launchers.shown(plan).split("# what runs\n")[1])
    expected = value
    for known, replaced in (("$MASTER_PORT", "20001"), ("~/", "/srv/u/")):
        expected = replaced + expected[len(known) :] if expected.startswith(known) else expected
    assert shown[shown.index("TRAINYARD_INTERFACE") + 1] == expected
    assert "/srv/u/runs/demo-1/job.toml" in shown and shown[shown.index("-hostfile") + 1] == "/tmp/f/hostfile"
    running = made(
        plans.plan("mpirun", replace(launch, run_dir="/r"), HeadValues(folder="/f")).shell.split("; exec ")[1]
    )
    assert running[running.index("TRAINYARD_INTERFACE") + 1] == value
    assert not list(tmp_path.iterdir())


def test_a_path_that_looks_like_a_token_of_openssh_s(home: Path) -> None:
    cluster = SshCluster(
        name="c", nodes=(Node(name="n", private_ip="10.0.0.1"),), jump_host="10.9.9.9", identity_file="/k/TARGET %h"
    )
    same(understood([*options(cluster, cluster.head), "10.0.0.1"]), cluster, cluster.head)
