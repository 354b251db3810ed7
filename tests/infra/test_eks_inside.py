"""What `up` does around an EKS cluster beside declaring it: objects into its API, the end of its nodes, the operator's
definition. The API is a server of ours (kube_api), Auto Scaling is moto's."""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import boto3
import moto_cloud
import pytest
from botocore.config import Config
from http_server import Answer, serve
from kube_api import KubeApi, served

from infra import training_operator
from infra.clouds import kube_apply
from infra.clouds.aws import api as aws_api
from infra.clouds.aws import eks_api, eks_end, eks_token
from infra.clouds.kube_client import ApiError, Client, path_of
from infra.errors import OperationError

DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: pytorchjobs.kubeflow.org}
"""
PLUGIN = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "plugin", "namespace": "kube-system"},
    "spec": {},
}
SPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "trainyard"}}


# --- objects ---


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeApi]:
    monkeypatch.setattr(training_operator, "definition", lambda: DEFINITION)
    monkeypatch.setattr(eks_token, "token", lambda cluster, region: f"{cluster}-{region}")
    monkeypatch.setattr(kube_apply, "POLL", 0.01)
    with served() as server:
        yield server


def props(api: KubeApi, *objects: dict[str, Any]) -> dict[str, Any]:
    where = {"cluster": "yard", "region": "eu-west-1", "endpoint": api.url, "authority": api.authority}
    text = json.dumps([*objects, *training_operator.objects()])
    return {**where, "objects": text, "digest": eks_api.digest_of(text)}


def test_all_objects_are_applied_the_definition_first(api: KubeApi) -> None:
    made = eks_api.ObjectsProvider().create(props(api, SPACE, PLUGIN))
    assert made.id == "yard/trainyard"
    paths = list(api.applied)
    assert paths[0] == "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pytorchjobs.kubeflow.org"
    assert paths[1:3] == ["/api/v1/namespaces/trainyard", "/apis/apps/v1/namespaces/kube-system/daemonsets/plugin"]
    assert "/apis/rbac.authorization.k8s.io/v1/clusterroles/training-operator" in paths
    assert "/api/v1/namespaces/kubeflow/secrets/training-operator-webhook-cert" in paths
    assert len(paths) == 3 + len(training_operator.objects())
    assert api.tokens == {"Bearer yard-eu-west-1"}


def test_an_api_that_lets_nobody_in_yet_is_asked_again(api: KubeApi) -> None:
    api.refusals += [(401, "Unauthorized"), (403, "forbidden"), (503, "starting"), (404, "no such kind yet")]
    eks_api.apply(props(api, SPACE))
    assert "/api/v1/namespaces/trainyard" in api.applied and not api.refusals


def test_what_the_api_refuses_for_good_is_one_line(api: KubeApi) -> None:
    api.refusals += [(422, "CustomResourceDefinition is invalid:\n spec: Required value")]
    with pytest.raises(OperationError, match=r"^CustomResourceDefinition pytorchjobs.kubeflow.org: .*Required value$"):
        eks_api.apply(props(api))
    assert api.applied == {}


def test_an_api_that_never_lets_in_ends_the_wait(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_apply, "LETS_IN", 0.0)
    api.refusals += [(403, 'pods is forbidden: User "ada"')] * 2
    with pytest.raises(OperationError, match=r'forbidden: User "ada"$'):
        eks_api.apply(props(api))


def test_an_api_that_does_not_answer_is_said_with_the_usual_reason(
    api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_apply, "LETS_IN", 0.0)
    gone = {**props(api), "endpoint": "https://127.0.0.1:9"}
    with pytest.raises(OperationError, match=r"https://127.0.0.1:9 does not answer: .*in the network of adminCidr\?$"):
        eks_api.apply(gone)


def test_pods_that_do_not_get_ready_are_named(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_apply, "READY", 0.05)
    api.unready |= {"plugin", "training-operator"}
    with pytest.raises(OperationError) as caught:
        eks_api.apply(props(api, PLUGIN))
    said = str(caught.value)
    assert "DaemonSet plugin: 0 of 2 pods ready (kubectl -n kube-system describe daemonset plugin)" in said
    assert "Deployment training-operator: 0 of 1 pods ready" in said


def test_another_server_with_the_same_address_is_not_believed(api: KubeApi) -> None:
    with served() as other, pytest.raises(ApiError, match=r"does not answer: .*certificate"):
        Client(api.url, other.authority, lambda: "secret").get(SPACE)
    assert "Bearer secret" not in api.tokens


def test_only_changed_objects_are_applied_again(api: KubeApi) -> None:
    provider, before = eks_api.ObjectsProvider(), props(api, SPACE)
    assert not provider.diff("", before, before).changes
    changed = provider.diff("", before, props(api, SPACE, PLUGIN))
    assert changed.changes and not changed.replaces
    assert provider.diff("", before, {**before, "endpoint": "https://another"}).replaces == ["endpoint"]
    provider.delete("", before)
    assert api.applied == {}, "the objects go with the cluster, and a dead API holds up no destroy"


def test_every_kind_that_is_applied_has_a_path() -> None:
    for one in training_operator.objects():
        assert path_of(one).endswith(f"/{one['metadata']['name']}")


# --- the operator's definition ---


def archive(content: bytes, name: str = training_operator.DEFINITION_FILE) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as into:
        into.writestr(name, content)
    return packed.getvalue()


def test_the_definition_is_taken_only_with_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    own = hashlib.sha256(b"kind: X").hexdigest()
    monkeypatch.setattr(training_operator, "DEFINITION_SHA256", own)
    for body, why in (
        (archive(b"kind: X"), ""),
        (archive(b"kind: Y"), f"and should have {own}"),
        (archive(b"kind: X", "another"), "There is no item named"),
        (b"<html>", "not a zip file"),
    ):
        with serve(lambda _, body=body: Answer(body=body)) as server:  # type: ignore[misc]
            if not why:
                assert training_operator.definition(server.url) == "kind: X"
                continue
            with pytest.raises(OperationError, match=why):
                training_operator.definition(server.url)
    with pytest.raises(
        OperationError, match=r"^the training operator's definition of PyTorchJob, http://127.0.0.1:9: "
    ):
        training_operator.definition("http://127.0.0.1:9")


# --- the end of the nodes ---


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An Auto Scaling group of two machines."""
    with moto_cloud.aws(monkeypatch):
        ec2, scaling = boto3.client("ec2"), boto3.client("autoscaling")
        image = moto_cloud.image()
        data = {"ImageId": image, "InstanceType": "t3.micro"}
        ec2.create_launch_template(LaunchTemplateName="gpus", LaunchTemplateData=data)
        scaling.create_auto_scaling_group(
            AutoScalingGroupName="eks-gpus",
            LaunchTemplate={"LaunchTemplateName": "gpus"},
            AvailabilityZones=["us-east-1a"],
            **{"MinSize": 0, "MaxSize": 2, "DesiredCapacity": 2},
        )
        yield "eks-gpus"


def test_the_group_is_told_when_to_have_no_machines(group: str) -> None:
    wanted = {"region": "us-east-1", "group": group, "hours": 12, "ends": None}
    provider = eks_end.EndsProvider()
    made = provider.create(wanted)
    outs = made.outs or {}
    (action,) = boto3.client("autoscaling").describe_scheduled_actions()["ScheduledUpdateGroupActions"]
    assert (action["MinSize"], action["DesiredCapacity"]) == (0, 0) and "MaxSize" not in action
    left = action["StartTime"] - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(hours=11.9) < left <= datetime.timedelta(hours=12)
    assert datetime.datetime.fromisoformat(outs["ends"]) == action["StartTime"]
    assert provider.read(made.id, outs).id == made.id
    longer = {**wanted, "hours": 48}
    assert provider.diff(made.id, outs, longer).changes and not provider.diff(made.id, outs, wanted).changes
    provider.update(made.id, outs, longer)
    (action,) = boto3.client("autoscaling").describe_scheduled_actions()["ScheduledUpdateGroupActions"]
    assert action["StartTime"] - datetime.datetime.now(datetime.UTC) > datetime.timedelta(hours=47)


def test_an_end_that_has_been_is_set_anew_by_the_next_up(group: str) -> None:
    """A scheduled action that has happened is gone: the refresh drops it from the state."""
    provider = eks_end.EndsProvider()
    made = provider.create({"region": "us-east-1", "group": group, "hours": 1, "ends": None})
    boto3.client("autoscaling").delete_scheduled_action(AutoScalingGroupName=group, ScheduledActionName=eks_end.ACTION)
    assert provider.read(made.id, made.outs or {}).id == ""


def test_a_group_that_cannot_be_told_is_said_with_what_it_costs(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    away = boto3.client(
        "autoscaling", endpoint_url="http://127.0.0.1:1", config=Config(retries={"total_max_attempts": 1})
    )
    monkeypatch.setattr(aws_api, "client", lambda *_: away)  # moto sets an end for a group that is not there, too
    wanted = {"region": "us-east-1", "group": group, "hours": 1, "ends": None}
    with pytest.raises(OperationError, match="cannot be set, and they cost until fab destroy: "):
        eks_end.EndsProvider().create(wanted)
