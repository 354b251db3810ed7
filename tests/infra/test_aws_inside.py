"""What happens inside a machine of AWS during `up`: boto3 against a moto server over HTTP (see ssm_agent.py)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import moto_cloud
import pytest
from ssm_agent import REGION, Agent, amazon, answering, instance

from infra import user_data
from infra.clouds.aws import builder, host_key, ssm
from infra.clouds.aws.builder import BakedProvider, BakeError, SealedProvider
from infra.clouds.aws.host_key import HostKeyProvider
from infra.clouds.aws.ssm import ManagedMachine, SsmCommandError
from infra.config import stack_file
from infra.config.settings import load
from infra.state import operation

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with amazon() as address:
        yield address


@pytest.fixture
def agent(moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Agents on all machines; boto3 finds them as it finds AWS, by the environment."""
    agent = Agent(tmp_path, moto, here={builder._LOOK, host_key._READ})
    (tmp_path / "var/lib/trainyard").mkdir(parents=True)
    with answering(agent) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSM", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        moto_cloud.start_session()
        monkeypatch.setattr(ssm, "POLL", 0.01)
        monkeypatch.setattr(builder, "POLL", 0.01)
        yield agent


@pytest.fixture
def machine(agent: Agent) -> ManagedMachine:
    return ManagedMachine(REGION, instance(), "builder", lambda: None)


def state(instance_id: str) -> str:
    found = boto3.client("ec2", region_name=REGION).describe_instances(InstanceIds=[instance_id])
    return str(found["Reservations"][0]["Instances"][0]["State"]["Name"])


def record(agent: Agent, kind: str, **values: Any) -> None:
    """A record as the bootstrap leaves it."""
    text = json.dumps({"node": "builder", "mode": "bake", "time": time.time(), **values}, indent=1)
    (agent.root / f"var/lib/trainyard/{kind}.json").write_text(text + "\n")


def progress(agent: Agent, *steps: str) -> None:
    events = [{"time": 1.0, "step": step, "state": "done", "seconds": 2.0} for step in steps]
    text = "".join(json.dumps(event) + "\n" for event in events)
    (agent.root / "var/lib/trainyard/progress.jsonl").write_text(text)


def props(machine: ManagedMachine, **more: Any) -> dict[str, Any]:
    return {"region": REGION, "instance": machine.instance, **more}


# --- a command ---


def test_a_command_says_what_it_printed(agent: Agent, machine: ManagedMachine) -> None:
    script = "echo one; echo two"
    agent.here.add(script)
    assert machine.run(script) == "one\ntwo\n"


def test_a_command_is_waited_for_also_where_aws_does_not_know_it_yet(agent: Agent, machine: ManagedMachine) -> None:
    agent.unknown, agent.slow = 2, 3
    agent.here.add("echo late")
    assert machine.run("echo late") == "late\n"


def test_a_command_that_fails_says_why(agent: Agent, machine: ManagedMachine) -> None:
    agent.here.add("echo no disk >&2; exit 3")
    with pytest.raises(SsmCommandError, match=rf"builder \({machine.instance}\): a command ended as Failed: no disk"):
        machine.run("echo no disk >&2; exit 3")


def test_a_machine_that_never_registers_is_told_with_what_to_look_at(agent: Agent, machine: ManagedMachine) -> None:
    agent.online = False
    with pytest.raises(SsmCommandError, match=r"did not register .*get-console-output") as caught:
        machine.await_agent(timeout=0.05)
    assert len(str(caught.value).splitlines()) == 1


def test_a_machine_that_has_ended_is_not_waited_for(agent: Agent, machine: ManagedMachine) -> None:
    agent.online = False
    boto3.client("ec2", region_name=REGION).terminate_instances(InstanceIds=[machine.instance])
    with pytest.raises(SsmCommandError, match=f"builder \\({machine.instance}\\) is terminated"):
        machine.await_agent()


def test_a_wait_ends_when_nobody_wants_it(agent: Agent) -> None:
    def cancelled() -> None:
        raise operation.Cancelled("interrupted")

    agent.online = False
    with pytest.raises(operation.Cancelled):
        ManagedMachine(REGION, instance(), "node1", cancelled).await_agent()


@pytest.mark.parametrize("kind", ["InternalServerError", "ThrottlingException", "nothing"])
def test_a_call_that_aws_does_not_answer_is_made_again(agent: Agent, machine: ManagedMachine, kind: str) -> None:
    agent.trouble = [kind] * 3
    machine.await_agent(timeout=30)
    agent.trouble = [kind] * 3
    agent.here.add("echo there")
    assert machine.run("echo there") == "there\n"
    assert agent.trouble == []


def test_trouble_that_does_not_pass_ends_with_the_deadline(agent: Agent, machine: ManagedMachine) -> None:
    agent.trouble = ["InternalServerError"] * 10_000
    with pytest.raises(SsmCommandError, match=r"builder \(i-.*\): describe_instance_information: InternalServerError"):
        machine.await_agent(timeout=0.2)
    assert len(agent.trouble) < 9_999, "asked more than once"


def test_what_aws_refuses_is_told_at_once_and_in_one_line(agent: Agent, machine: ManagedMachine) -> None:
    agent.trouble = ["AccessDeniedException", "InternalServerError"]
    with pytest.raises(SsmCommandError, match="AccessDeniedException") as caught:
        machine.await_agent()
    assert len(str(caught.value).splitlines()) == 1 and agent.trouble == ["InternalServerError"]


def test_a_machine_that_ec2_does_not_know_yet_is_pending(agent: Agent) -> None:
    made = ManagedMachine(REGION, "i-0123456789abcdef0", "node1", lambda: None)
    assert made.state() == "pending"
    made.await_agent()  # its agent may be known first


# --- the gate ---


def test_the_gate_opens_by_the_bootstraps_own_record(
    agent: Agent, machine: ManagedMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    progress(agent, "packages", "torch")
    record(agent, "ready")
    made = BakedProvider().create(props(machine))
    assert made.id == machine.instance
    assert "image: torch 2 s" in capsys.readouterr().out
    assert state(machine.instance) == "running"  # the seal is next


def test_scripts_that_are_too_large_for_user_data_are_brought_and_started(
    agent: Agent, machine: ManagedMachine, tmp_path: Path
) -> None:
    (tmp_path / "opt").mkdir()
    packed = user_data.archive(load("local", {**stack_file.defaults(), "profile": "native"}, reads_key=False))
    chunks = [packed[at : at + builder._CHUNK] for at in range(0, len(packed), builder._CHUNK)]
    assert len(chunks) > 1, "in several commands, as one may not be of any size"
    paste = [f'printf %s {chunk} {">>" if at else ">"}"{builder._ARCHIVE}"' for at, chunk in enumerate(chunks)]
    agent.here |= {*paste, builder._UNPACK}  # but not the start, which is the machine's own systemd's
    progress(agent, "packages")
    record(agent, "ready")
    BakedProvider().create(props(machine, scripts=packed))
    brought = tmp_path / "opt/trainyard/bootstrap"
    assert (brought / "bootstrap.sh").stat().st_mode & 0o777 == 0o755
    assert (brought / "steps/image/50-torch").read_text().startswith("version=")
    assert list((tmp_path / "opt").iterdir()) == [tmp_path / "opt/trainyard"], "nothing else is left"
    places = [agent.ran.index(script) for script in (builder._SETTLED, *paste, builder._UNPACK, builder._START)]
    assert places == sorted(places) and places[-1] < agent.ran.index(builder._LOOK)


def test_a_finished_cloud_init_is_no_reason_to_open(agent: Agent, machine: ManagedMachine) -> None:
    """Steps have run, no record: however long that is."""
    progress(agent, "packages")
    with pytest.raises(BakeError, match="no record after 0 s; the last was step packages"):
        builder.await_record(machine, timeout=0.05)


def test_a_failed_bake_ends_with_its_log_and_a_stopped_builder(agent: Agent, machine: ManagedMachine) -> None:
    record(agent, "failed", step="torch", reason="cannot install torch", log=["pip says", "no space left"])
    with pytest.raises(BakeError) as caught:
        BakedProvider().create(props(machine))
    assert str(caught.value).splitlines() == [
        "builder: step torch failed: cannot install torch; the end of its log:",
        "    pip says",
        "    no space left",
    ]
    assert state(machine.instance) == "stopped"


def test_the_builder_of_a_failed_bake_is_booted_and_asked_again(agent: Agent, machine: ManagedMachine) -> None:
    """Its old record is of an earlier boot, and the new boot has one of its own in the end."""
    record(agent, "failed", step="torch", reason="no network", log=[], time=1000.0)
    machine.stop()
    (agent.root / "var/lib/trainyard/ready.json").write_text(json.dumps({"time": time.time()}))
    BakedProvider().create(props(machine))
    assert state(machine.instance) == "running"


def test_a_builder_that_is_forgotten_ends_by_itself(agent: Agent, machine: ManagedMachine) -> None:
    record(agent, "ready")
    BakedProvider().create(props(machine))
    assert agent.ran[0] == "systemctl is-active trainyard-builder-end.timer || shutdown -P +180"


def test_a_builder_that_nobody_waits_for_any_more_is_stopped(
    agent: Agent, machine: ManagedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancelled(_watch: object) -> None:
        raise operation.Cancelled("the update was cancelled")

    agent.online = False
    monkeypatch.setattr(operation.CancellationWatch, "check", cancelled)
    with pytest.raises(operation.Cancelled):
        BakedProvider().create(props(machine))
    assert state(machine.instance) == "stopped"


def test_a_builder_that_cannot_be_stopped_is_named(
    agent: Agent, machine: ManagedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(agent, "failed", step="torch", reason="x", log=[])
    stop = ManagedMachine.stop
    monkeypatch.setattr(ManagedMachine, "stop", lambda self: stop(replace(self, instance="i-0123456789abcdef0")))
    with pytest.raises(
        BakeError, match=f"the builder {machine.instance} could not be stopped and costs money: builder"
    ):
        BakedProvider().create(props(machine))


def test_the_seal_is_the_bootstraps_own_script(agent: Agent, machine: ManagedMachine) -> None:
    SealedProvider().create(props(machine))
    assert agent.ran == ["exec bash /opt/trainyard/bootstrap/seal.sh"]


def test_a_seal_that_fails_stops_the_builder(agent: Agent, machine: ManagedMachine) -> None:
    agent.refuse = "no /opt/trainyard/image.json"
    with pytest.raises(SsmCommandError, match=r"no /opt/trainyard/image\.json"):
        SealedProvider().create(props(machine))
    assert state(machine.instance) == "stopped"


@pytest.mark.parametrize("provider", [BakedProvider(), SealedProvider(), HostKeyProvider()])
def test_another_machine_is_another_gate(provider: Any) -> None:
    old = {"region": REGION, "instance": "i-1"}
    assert provider.diff("i-1", old, {"region": REGION, "instance": "i-2"}).replaces == ["instance"]
    assert provider.diff("i-1", old, {"region": REGION}).replaces == ["instance"]  # in a preview it is not known yet
    assert not provider.diff("i-1", old, old).changes


# --- the host key ---


def test_a_nodes_host_key_is_its_public_half(agent: Agent, machine: ManagedMachine) -> None:
    (agent.root / "etc/ssh").mkdir(parents=True)
    (agent.root / "etc/ssh/ssh_host_ed25519_key.pub").write_text(f"{KEY} root@ip-10-0-0-10\n")
    made = HostKeyProvider().create(props(machine, node="node1", host_key=None))
    assert made.outs is not None and made.outs["host_key"] == KEY


def test_what_is_no_host_key_is_not_taken_for_one(agent: Agent, machine: ManagedMachine) -> None:
    (agent.root / "etc/ssh").mkdir(parents=True)
    (agent.root / "etc/ssh/ssh_host_ed25519_key.pub").write_text("Welcome to Ubuntu\n")
    with pytest.raises(SsmCommandError, match=r"node1 \(i-.*\) has no ed25519 host key: 'Welcome to'"):
        HostKeyProvider().create(props(machine, node="node1", host_key=None))
