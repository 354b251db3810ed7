"""A stack's id: where it comes from, that it stays, and that a name on this machine is one user's."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest

from infra.clouds import sdk
from infra.clouds.local import firewall, network, orphans, owner, paths
from infra.errors import OperationError, UsageError
from infra.state import stack_id, stack_record
from infra.state.ownership import Claim, Location
from infra.state.stack_id import StackIdProvider

NODE = {"urn::node1": {"type": "pulumi-python:dynamic/local:Node", "outputs": {}}}
ONLY_PULUMIS = {
    "urn::trainyard-yard": {"type": "pulumi:pulumi:Stack", "outputs": {}},
    "urn::aws": {"type": "pulumi:providers:aws", "outputs": {}},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "ada"))
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "lib"))
    monkeypatch.delenv("PULUMI_BACKEND_URL", raising=False)
    monkeypatch.delenv(stack_record.BACKEND, raising=False)
    return tmp_path


def props(**more: Any) -> dict[str, Any]:
    return {"stack": "yard", "stack_id": "aaaa1111", "cloud": "", "region": "", "locations": None, **more}


def test_the_state_decides_then_the_record_and_an_old_stack_has_none() -> None:
    made = {"urn::stack-id": {"type": "pulumi-python:dynamic/trainyard:StackId", "outputs": {"stack_id": "cccc3333"}}}
    assert stack_id.choose("yard", {**NODE, **made}) == "cccc3333"
    assert stack_id.choose("yard", NODE) == "", "it was made before there were ids, and keeps its names"
    first = stack_id.choose("yard", {})
    assert stack_record.ID.fullmatch(first)
    assert stack_id.choose("yard", ONLY_PULUMIS) == first, "what the preview said, `up` takes"
    assert stack_id.choose("other", {}) != first


class Busy:
    """A state that Pulumi is writing for the first questions."""

    def __init__(self, times: float) -> None:
        self.times, self.asked = times, 0

    def invoke(self, _token: str, _arguments: dict[str, Any]) -> Any:
        self.asked += 1
        if self.asked <= self.times:
            raise Exception("readStackResourceOutputs returned an error: failed to load checkpoint: EOF")  # noqa: TRY002
        return SimpleNamespace(value={"outputs": {"urn::stack-id": {"type": "", "outputs": {"stack_id": "cccc3333"}}}})


@pytest.mark.parametrize(("times", "found"), [(0, True), (3, True), (math.inf, False)])
def test_a_state_that_is_being_written_is_asked_again(
    times: float, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = Busy(times)
    monkeypatch.setattr(pulumi.runtime, "invoke", busy.invoke)
    monkeypatch.setattr(pulumi, "get_organization", lambda: "organization")
    monkeypatch.setattr(pulumi, "get_project", lambda: "trainyard")
    monkeypatch.setattr(stack_id, "_WRITTEN_S", 0.5)
    monkeypatch.setattr(stack_id, "_PAUSE_S", 0.01)
    if found:
        assert stack_id.of_stack("yard") == "cccc3333" and busy.asked == times + 1
    else:
        with pytest.raises(UsageError, match=r"the state of stack yard cannot be read: .*EOF"):
            stack_id.of_stack("yard")


def test_each_state_of_a_user_has_an_id_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first = stack_record.reserve("yard")
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://team")
    assert stack_record.read("yard") is None and stack_record.reserve("yard") != first
    monkeypatch.delenv("PULUMI_BACKEND_URL")
    stack_record.forget("yard")
    assert stack_record.read("yard") is None


def test_two_programs_at_once_take_the_same_id() -> None:
    found: list[str] = []
    gate = threading.Barrier(8)

    def take() -> None:
        gate.wait()
        found.append(stack_record.reserve("yard"))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    assert [path.suffix for path in stack_record.path("yard").parent.iterdir()] == [".json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": "../x", "locations": []}', '{"id": "aaaa1111"}'])
def test_a_broken_record_is_one_line_that_names_it(text: str) -> None:
    stack_record.reserve("yard")
    stack_record.path("yard").write_text(text)
    with pytest.raises(UsageError, match=r"ids/yard/.*\.json: not a stack's record") as wrong:
        stack_record.reserve("yard")
    assert "\n" not in str(wrong.value)


def test_every_place_is_remembered_in_the_state_and_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [Location("aws", "us-east-1", "1"), Location("aws", "eu-central-1", "1")]
    credentials = SimpleNamespace(location=lambda region: next(place for place in here if place.region == region))
    monkeypatch.setattr(sdk, "load", lambda module: credentials)
    provider, first = StackIdProvider(), props(cloud="aws", region="us-east-1")
    outs = provider.create(first).outs or {}
    moved = {**first, "region": "eu-central-1"}
    assert not provider.diff("aaaa1111", outs, first).changes
    assert provider.diff("aaaa1111", outs, moved).changes and not provider.diff("aaaa1111", outs, moved).replaces
    outs = provider.update("aaaa1111", outs, moved).outs or {}
    assert [place["region"] for place in outs["locations"]] == ["us-east-1", "eu-central-1"]
    record = stack_record.read("yard")
    assert record is not None and list(record.locations) == here and record.id == "aaaa1111"


def test_a_name_on_this_machine_is_one_users(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = StackIdProvider()
    provider.create(props())
    assert json.loads((paths.stack("yard") / "owner.json").read_text())["home"] == str(home / "ada")
    provider.create(props())  # of a killed `up`: the same
    monkeypatch.setenv("HOME", str(home / "bob"))
    with pytest.raises(OperationError, match=r"stack yard: on this machine it is the stack of .*ada.* aaaa1111"):
        provider.create(props(stack_id="bbbb2222"))
    with pytest.raises(UsageError, match="take another name"):
        owner.check("yard", ["bbbb2222"])
    provider.delete("bbbb2222", props(stack_id="bbbb2222"))
    assert owner.read("yard") is not None, "bob's destroy leaves ada's name alone"
    provider.delete("aaaa1111", props())
    assert owner.read("yard") is None and not paths.stack("yard").exists()


def test_what_is_of_another_user_on_this_machine_is_marked_and_never_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "links", list)
    monkeypatch.setattr(firewall, "is_open", lambda _link: False)
    owner.claim("yard", "aaaa1111")
    paths.node("yard", "node1").mkdir(parents=True)
    found = orphans.find("yard", ["bbbb2222"])
    assert {resource.kind for resource in found} == {"directory", "name"}
    assert not any(resource.ours for resource in found) and all("aaaa1111" in resource.whose for resource in found)
    assert orphans.sweep("yard", [], ["bbbb2222"]) == []
    assert all(resource.ours for resource in orphans.find("yard", ["aaaa1111"]))
    assert {resource.kind for resource in orphans.sweep("yard", [], ["aaaa1111"])} == {"directory", "name"}
    assert orphans.find("yard", []) == []


def test_the_id_decides_and_the_owner_where_there_is_none() -> None:
    claim = Claim("yard", "ada", frozenset({"aaaa1111"}))
    tags = {"trainyard-stack": "yard", "trainyard-owner": "bob", "trainyard-id": "aaaa1111"}
    assert claim.whose(tags) == "", "two who share a state share its id"
    assert claim.whose({**tags, "trainyard-id": "bbbb2222"}) == "bob, stack id bbbb2222"
    assert claim.whose({"trainyard-stack": "yard", "trainyard-owner": "bob"}) == "bob"
    assert claim.whose({"trainyard-stack": "yard", "trainyard-owner": "ada"}) == ""
