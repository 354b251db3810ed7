"""aws-slurm under mocks: what Pulumi declares, ParallelCluster's configuration in it, the inventory and the bill."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files

import pytest
from aws_mocks import FILE_SYSTEM, OURS, RESERVATION
from aws_slurm_program import STACK, configuration, wrapper
from aws_xeon_program import Program, refusal, settings
from program_recorder import HOST_KEY, STACK_ID

from infra.clouds.aws import capacity, parallel_cluster, pcluster_config
from infra.clusters import aws_slurm
from infra.errors import UsageError
from infra.inventory import Queue
from infra.prices import table

pytest_plugins = ["aws_slurm_program"]
CLUSTER = f"trainyard-{STACK}-{STACK_ID}"


# --- what Pulumi declares ---


@pytest.mark.parametrize("preview", [True, False])
def test_the_stack_builds(slurm_program: Program, preview: bool) -> None:
    ran = slurm_program(preview=preview)
    # Their keys are the templates' own, as tags are.
    assert ran.messages == [] and sorted(ran.plain_dicts) == ["cluster.parameters", "pcluster.parameters"]
    names = {found.type.split(":")[-1] for found in ran.declared.values()}
    assert names >= {"LustreFileSystem", "DataRepositoryAssociation", "Stack", "BucketObjectv2", "NatGateway", "Budget"}
    assert not names & {"Instance", "LaunchTemplate", "AmiFromInstance", "InstanceProfile"}, "ParallelCluster's own"
    assert {found.provider for found in ran.declared.values() if found.type.startswith("aws:")} == {"aws"}


def test_the_cluster_goes_before_what_it_stands_on(slurm_program: Program) -> None:
    """Pulumi destroys in the reverse order: the cluster's machines, then the file system, then the network."""
    needed = slurm_program().closure("cluster")
    assert {"network", "private-joined", "nat", "nodes-group", "nodes-among-themselves", "operator-ssh"} <= needed
    assert {"lustre", "lustre-bucket", "lustre-group", "data", "nodes-rights", "pcluster", "key"} <= needed
    assert any(name.startswith("bootstrap-") for name in needed)
    assert not needed & {"budget", "head-host-key"}


def test_the_file_system_is_pulumis_and_linked_to_the_bucket(slurm_program: Program) -> None:
    ran = slurm_program()
    system = ran["lustre"].inputs
    assert (system["deploymentType"], system["perUnitStorageThroughput"], system["storageCapacity"]) == (
        *("PERSISTENT_2", 125, 1200),
    )
    link = ran["lustre-bucket"].inputs
    assert link["dataRepositoryPath"] == f"s3://{ran['data'].inputs['bucket']}/fsx/" and link["fileSystemPath"] == "/"
    assert link["s3"]["autoExportPolicy"]["events"] == ["NEW", "CHANGED", "DELETED"]
    (shared,) = configuration(ran)["SharedStorage"]
    assert shared["FsxLustreSettings"] == {"FileSystemId": FILE_SYSTEM} and shared["MountDir"] == "/fsx"


def test_only_lustres_ports_reach_the_file_system(slurm_program: Program) -> None:
    ran = slurm_program()
    rules = [found.inputs for name, found in ran.declared.items() if name.startswith(("lustre-from", "lustre-to"))]
    assert {(rule["fromPort"], rule["toPort"], rule["ipProtocol"]) for rule in rules} == {
        (988, 988, "tcp"),
        (1018, 1023, "tcp"),
    }
    assert {rule["referencedSecurityGroupId"] for rule in rules} == {"nodes-group-id", "lustre-group-id"}
    assert len(rules) == 8 and {rule["securityGroupId"] for rule in rules} == {"lustre-group-id"}


def test_the_provider_is_awss_own_of_the_version_that_is_judged(slurm_program: Program) -> None:
    provider = slurm_program()["pcluster"].inputs
    assert provider["templateUrl"] == (
        "https://us-east-1-aws-parallelcluster.s3.us-east-1.amazonaws.com/parallelcluster/3.16.1/templates/"
        "custom_resource/cluster.yaml"
    )
    assert "CAPABILITY_AUTO_EXPAND" in provider["capabilities"]


def test_the_wrapper_asks_for_the_cluster_by_aws_custom_resource(slurm_program: Program) -> None:
    ran = slurm_program()
    cluster = wrapper(ran)["Resources"]["Cluster"]
    assert cluster["Type"] == "Custom::PclusterCluster"
    asked = cluster["Properties"]
    assert asked["ClusterName"] == CLUSTER != ran["cluster"].inputs["name"]
    assert asked["ServiceToken"].startswith("arn:aws:lambda:") and asked["DeletionPolicy"] == "Delete"
    assert asked["SuppressValidators"] == ["type:InstanceTypeBaseAMICompatibleValidator"]
    assert len(ran["cluster"].inputs["templateBody"]) < parallel_cluster.TEMPLATE_BYTES
    assert "tags" not in ran["cluster"].inputs, "they become the machines', which have names already"
    outputs = wrapper(ran)["Outputs"]
    assert outputs["Instance"]["Value"] == {"Fn::GetAtt": ["Cluster", "headNode.instanceId"]}


def test_no_validator_is_suppressed_that_need_not_be(slurm_program: Program) -> None:
    ran = slurm_program(instanceType="p4d.24xlarge", image="bake")
    assert wrapper(ran)["Resources"]["Cluster"]["Properties"]["SuppressValidators"] == []
    assert configuration(ran)["Image"] == {"Os": "ubuntu2404"}


def test_a_running_cluster_keeps_its_image_and_bootstrap(slurm_program: Program) -> None:
    """ParallelCluster refuses both changes on a cluster that runs."""
    kept, anew = slurm_program()["cluster"], slurm_program(replaceNodes=True)["cluster"]
    assert (kept.ignore_changes, anew.ignore_changes) == (("parameters",), ())
    assert "parameters" in anew.replace_on_changes and anew.delete_before_replace
    assert kept.inputs["parameters"]["Image"] == OURS
    assert configuration(slurm_program())["Image"]["CustomAmi"] == {"Ref": "Image"}


def test_the_script_is_in_the_bucket_under_its_own_hash(slurm_program: Program) -> None:
    ran = slurm_program()
    digest = ran["cluster"].inputs["parameters"]["Bootstrap"]
    script = ran[f"bootstrap-{digest}"]
    assert script.inputs["key"] == f"bootstrap/{digest}.sh" and script.retain_on_delete
    for part in (configuration(ran)["HeadNode"], configuration(ran)["Scheduling"]["SlurmQueues"][0]):
        action = part["CustomActions"]["OnNodeConfigured"]
        assert action["Script"] == {"Fn::Sub": f"s3://{ran['data'].inputs['bucket']}/bootstrap/${{Bootstrap}}.sh"}


# --- ParallelCluster's configuration ---


def test_the_queue_is_of_efa_nodes_on_demand_close_together(slurm_program: Program) -> None:
    queue = configuration(slurm_program(nodes=5))["Scheduling"]["SlurmQueues"][0]
    (resource,) = queue["ComputeResources"]
    assert (resource["InstanceType"], resource["MinCount"], resource["MaxCount"]) == ("p3dn.24xlarge", 0, 4)
    assert resource["Efa"] == {"Enabled": True} and queue["CapacityType"] == "ONDEMAND"
    network = queue["Networking"]
    assert network["PlacementGroup"] == {"Enabled": True} and network["AssignPublicIp"] is False
    assert network["SubnetIds"] == ["private-subnet-id"] and network["SecurityGroups"] == ["nodes-group-id"]
    assert configuration(slurm_program(spot=True))["Scheduling"]["SlurmQueues"][0]["CapacityType"] == "SPOT"


def test_idle_nodes_end_when_the_key_says(slurm_program: Program) -> None:
    def idle(minutes: int) -> object:
        return configuration(slurm_program(idleMinutes=minutes))["Scheduling"]["SlurmSettings"]["ScaledownIdletime"]

    assert (idle(25), idle(0)) == (25, -1)


@pytest.mark.parametrize(("group", "placement"), [("", {"Enabled": False}), ("mine", {"Name": "mine"})])
def test_a_reservation_is_used_in_its_own_placement_group(
    slurm_program: Program, monkeypatch: pytest.MonkeyPatch, group: str, placement: dict[str, object]
) -> None:
    asked: list[int] = []

    def given(settings: object, *_: object) -> capacity.Given:
        asked.append(settings.nodes)  # type: ignore[attr-defined]
        return capacity.Given(RESERVATION, group)

    monkeypatch.setattr(capacity, "given", given)
    queue = configuration(slurm_program(capacityReservation=RESERVATION, shared=False))["Scheduling"]["SlurmQueues"][0]
    assert queue["Networking"]["PlacementGroup"] == placement
    target = queue["ComputeResources"][0]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": RESERVATION} and asked == [2], "the head is not in it"


def test_every_machine_and_volume_gets_the_stacks_tags(slurm_program: Program) -> None:
    tags = {tag["Key"]: tag["Value"] for tag in configuration(slurm_program())["Tags"]}
    assert tags["trainyard-stack"] == STACK and tags["trainyard-id"] == STACK_ID


def test_nothing_is_left_where_nobody_looks(slurm_program: Program) -> None:
    found = configuration(slurm_program())
    assert found["CustomS3Bucket"] == slurm_program()["data"].inputs["bucket"], "else the account keeps a bucket"
    assert found["Monitoring"]["Logs"]["CloudWatch"]["DeletionPolicy"] == "Delete"


def test_nodes_may_use_the_bucket_and_no_parameter_of_the_account(slurm_program: Program) -> None:
    ran = slurm_program()
    rights = ran["nodes-rights"].inputs
    assert rights["path"] == "/parallelcluster/", "the only path whose policies ParallelCluster may attach"
    actions = [statement["Action"] for statement in json.loads(rights["policy"])["Statement"]]
    assert not [action for group in actions for action in group if "*" in action or action.startswith("ssm:GetParam")]
    for part in (configuration(ran)["HeadNode"], configuration(ran)["Scheduling"]["SlurmQueues"][0]):
        assert part["Iam"] == {"AdditionalIamPolicies": [{"Policy": "arn:aws:iam:::nodes-rights"}]}


def test_a_template_that_is_too_large_is_refused(slurm_keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_cluster, "TEMPLATE_BYTES", 1000)
    with pytest.raises(UsageError, match=r"^the cluster's template: \d+ bytes, and CloudFormation takes 1000$"):
        aws_slurm.check(settings(slurm_keys))


# --- inventory and bill ---


def test_the_inventory_has_the_head_and_the_queue(slurm_program: Program) -> None:
    cluster = slurm_program(nodes=3).cluster
    (head,) = cluster.nodes
    assert (head.name, head.address, head.private_ip, head.host_key) == ("head", "198.51.100.1", "10.0.0.20", HOST_KEY)
    assert (cluster.launcher, cluster.ssh_user, cluster.shared_dir) == ("slurm", "ubuntu", "/fsx")
    assert isinstance(cluster.queue, Queue)
    assert cluster.queue.node_names == ("queue1-dy-node-1", "queue1-dy-node-2")
    assert (cluster.queue.slots, cluster.queue.gpus, cluster.queue.cores_per_slot) == (8, 8, 6)
    assert (cluster.queue.gpu_architecture, cluster.queue.efa_cards, head.gpus) == ("sm_70", 1, 0)


def test_the_bill_tells_idle_from_full(slurm_keys: dict[str, str], slurm_program: Program) -> None:
    lines = aws_slurm.bill(settings(slurm_keys))
    assert [line.what.partition(":")[0] for line in lines if line.on_demand] == ["p3dn.24xlarge", "gp3-gb-month"]
    assert {line.what.partition(":")[0] for line in lines if not line.on_demand} == {
        *("c5n.2xlarge", "gp3-gb-month", "fsx-lustre-persistent2-125-gb-month", "nat-gateway", "public-ipv4"),
        *("s3-gb-month", "route53-hosted-zone-month"),
    }
    assert [line.count for line in lines if "hosted zone" in line.what] == [1]
    cluster = slurm_program().cluster
    assert cluster.hourly_usd == pytest.approx(table.idle(lines)) and cluster.queue is not None
    assert cluster.queue.hourly_usd * 2 == pytest.approx(table.total(lines) - table.idle(lines))


# --- what is refused ---


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"nodes": 1}, "nodes = 1: must be at least 2 with Slurm: the head, and a node of the queue"),
        ({"publicNodes": "all"}, "publicNodes = 'all': must be head: EFA's nodes have no public address"),
        (
            {"image": "bake"},
            "image = 'bake': must be ami-... of an image with NVIDIA's closed driver for p3dn.24xlarge",
        ),
        ({"image": "bake"}, "pcluster build-image --image-id trainyard-closed-driver --image-configuration "),
        ({"image": "ami-0123456789abcdef0"}, "this account has no such image in us-east-1"),
        ({"image": "ami-0cccccccccccccccc"}, "was not built by ParallelCluster (no tag parallelcluster:version)"),
        ({"baseImage": "ami-0eeeeeeeeeeeeeeee"}, "must be empty on aws-slurm: nothing is baked"),
        ({"diskGb": 40}, "diskGb = 40: must be at least 80"),
        ({"capacityReservation": RESERVATION, "spot": True}, "must be empty with spot"),
        ({"instanceType": "m7i.8xlarge"}, "instanceType = 'm7i.8xlarge': must be a size of"),
        ({"zone": "use1-az3"}, "zone = 'use1-az3': does not offer p3dn.24xlarge"),
        ({"nodes": 64, "cidr": "10.0.0.0/25"}, "must be a network with room for 63 nodes behind the NAT gateway"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_before_anything_is_declared(
    slurm_program: Program, changed: dict[str, object], why: str
) -> None:
    assert why in refusal(slurm_program, **changed)


def test_the_head_is_what_ec2_says() -> None:
    types = files("moto.ec2").joinpath("resources/instance_types.json.gz").read_bytes()
    answer = json.loads(gzip.decompress(types))[pcluster_config.HEAD.name]
    assert answer["VCpuInfo"]["DefaultCores"] == pcluster_config.HEAD.cores
    assert answer["MemoryInfo"]["SizeInMiB"] == pcluster_config.HEAD.memory_gb * 1024
