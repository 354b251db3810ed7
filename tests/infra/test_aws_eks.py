"""aws-eks under mocks: what Pulumi declares, in which order it goes, the inventory and the bill."""

from __future__ import annotations

import base64
import email

import pytest
import yaml
from aws_eks_declared import FULL_NAME, NAME, objects
from aws_mocks import EKS, KEY, RESERVATION
from aws_xeon_program import OWN, Program, refusal, settings
from program_recorder import STACK_ID

from infra.clouds.aws import capacity, eks_network, machine_types, zones
from infra.clusters import aws_eks
from infra.config.settings import load
from infra.prices import table

pytest_plugins = ["aws_eks_program"]
GROUPS = [EKS["vpcConfig"]["clusterSecurityGroupId"], "nodes-group-id"]  # type: ignore[index]


# --- the cluster ---


@pytest.mark.parametrize("preview", [True, False])
def test_the_stack_builds(eks_program: Program, preview: bool) -> None:
    ran = eks_program(preview=preview)
    # Their keys are Kubernetes' own, as tags are.
    assert ran.messages == [] and sorted(ran.plain_dicts) == ["gpus.labels", "system.labels"]
    assert {found.provider for found in ran.declared.values() if found.type.startswith("aws:")} == {"aws"}
    assert not ran.of("ec2/instance:Instance") and not ran.of("ec2/keyPair:KeyPair"), "nobody logs in"


def test_the_api_is_for_the_operator_and_the_nodes_alone(eks_program: Program) -> None:
    config = eks_program()["cluster"].inputs["vpcConfig"]
    assert config["publicAccessCidrs"] == [OWN["adminCidr"]] and config["endpointPrivateAccess"] is True
    assert config["subnetIds"] == ["private-subnet-id", "second-subnet-id"]
    assert not [found for found in eks_program().of("SecurityGroupIngressRule") if "cidrIpv4" in found.inputs]


def test_who_runs_up_administers_it_by_an_access_entry(eks_program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = eks_program()
    access = ran["cluster"].inputs["accessConfig"]
    assert access == {"authenticationMode": "API", "bootstrapClusterCreatorAdminPermissions": False}
    who = "arn:aws:iam::123456789012:role/people/ops"  # the role with its path, and not the session's ARN
    assert ran["operator"].inputs["principalArn"] == ran["operator-rights"].inputs["principalArn"] == who
    assert ran["operator-rights"].inputs["policyArn"].endswith("cluster-access-policy/AmazonEKSClusterAdminPolicy")
    monkeypatch.setattr(zones, "check_offer", lambda *_: None)
    monkeypatch.setattr(table, "is_priced", lambda *_: True)
    china = eks_program(region="cn-northwest-1", zone="cnnw1-az1", shared=False)["operator-rights"].inputs["policyArn"]
    assert china.startswith("arn:aws-cn:eks::aws:")


def test_secrets_logs_and_support(eks_program: Program) -> None:
    ran = eks_program()
    cluster = ran["cluster"]
    assert cluster.inputs["encryptionConfig"] == {"provider": {"keyArn": KEY}, "resources": ["secrets"]}
    assert ran["cluster-logs"].inputs["name"] == f"/aws/eks/{NAME}/cluster" and "cluster-logs" in cluster.needs
    assert cluster.inputs["upgradePolicy"] == {"supportType": "STANDARD"}, "else it costs six times as much in the end"
    assert cluster.inputs["bootstrapSelfManagedAddons"] is False


def test_the_network_has_two_zones_and_one_of_them_the_nodes(eks_program: Program) -> None:
    ran = eks_program()
    subnets = {one.name: one.inputs for one in ran.of("ec2/subnet:Subnet")}
    where = {name: subnet["availabilityZoneId"] for name, subnet in subnets.items()}
    assert where == {"public-subnet": "use1-az6", "private-subnet": "use1-az6", "second-subnet": "use1-az1"}
    assert {name: subnet["cidrBlock"] for name, subnet in subnets.items()} == {
        **{"private-subnet": "10.0.0.0/17", "second-subnet": "10.0.128.0/18", "public-subnet": "10.0.192.0/18"},
    }
    assert ran["second-subnet"].ignore_changes == ("availabilityZoneId",)
    assert ran["gpus"].inputs["subnetIds"] == ["private-subnet-id"]
    assert ran["system"].inputs["subnetIds"] == ["private-subnet-id", "second-subnet-id"]


# --- the nodes ---


@pytest.mark.parametrize(
    ("type_", "cards"), [("p4d.24xlarge", 4), ("p5.48xlarge", 32), ("g5.8xlarge", 1), ("g5.xlarge", 0)]
)
def test_efa_is_on_every_card(eks_program: Program, type_: str, cards: int) -> None:
    template = eks_program(instanceType=type_)["gpus-template"].inputs
    found = template.get("networkInterfaces", [])
    assert [(card["networkCardIndex"], card["deviceIndex"], card["interfaceType"]) for card in found] == [
        (index, min(index, 1), "efa-only" if index else "efa") for index in range(cards)
    ]
    for card in found:
        assert card["securityGroups"] == GROUPS and not {"subnetId", "privateIpAddress"} & set(card)
    assert template.get("vpcSecurityGroupIds") == (None if cards else GROUPS), "EKS adds its own only if none is named"
    efa = "DaemonSet/efa-device-plugin" in objects(eks_program(instanceType=type_))
    assert efa == bool(cards) and "DaemonSet/nvidia-device-plugin" in objects(eks_program(instanceType=type_))


def test_a_template_says_nothing_that_eks_says_itself(eks_program: Program) -> None:
    """https://docs.aws.amazon.com/eks/latest/userguide/launch-templates.html"""
    for name in ("gpus-template", "system-template"):
        template = eks_program()[name].inputs
        refused = {"iamInstanceProfile", "instanceInitiatedShutdownBehavior", "imageId", "instanceType", "keyName"}
        assert not refused & set(template), name
        assert template["metadataOptions"]["httpPutResponseHopLimit"] == 1
        kinds = {entry["resourceType"]: entry["tags"] for entry in template["tagSpecifications"]}
        assert set(kinds) == {"instance", "volume", "network-interface"}
        for tags in kinds.values():
            assert tags["trainyard-cluster"] == NAME and tags["trainyard-id"] == STACK_ID


def test_the_nodes_own_disks_are_one_place_for_images(eks_program: Program) -> None:
    message = email.message_from_bytes(base64.b64decode(eks_program()["gpus-template"].inputs["userData"]))
    _, part = message.walk()  # the message, and the one part that it is made of
    assert part.get_content_type() == "application/node.eks.aws"
    config = yaml.safe_load(str(part.get_payload()))
    assert config["spec"]["instance"]["localStorage"]["strategy"] == "RAID0"


def test_the_workers_are_together_and_reserved_at_once(eks_program: Program) -> None:
    ran = eks_program(nodes=3)
    gpus = ran["gpus"]
    assert ran["gpus-template"].inputs["placement"] == {"groupName": FULL_NAME}
    assert gpus.inputs["scalingConfig"] == {"minSize": 0, "maxSize": 3, "desiredSize": 3}
    assert gpus.inputs["amiType"] == "AL2023_x86_64_NVIDIA" and gpus.inputs["capacityType"] == "ON_DEMAND"
    assert "reserved" in gpus.needs and ran["reserved"].inputs["count"] == 3 and "gpus" in ran["released"].needs
    assert gpus.inputs["taints"] == [{"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}]
    assert eks_program(spot=True)["gpus"].inputs["capacityType"] == "SPOT"
    assert "reserved" not in eks_program(spot=True).declared
    assert "instanceMarketOptions" not in eks_program(spot=True)["gpus-template"].inputs, "EKS refuses both"


@pytest.mark.parametrize(("group", "block"), [("", False), ("mine", False), ("", True)])
def test_a_reservation_is_used_in_its_own_placement_group(
    eks_program: Program, monkeypatch: pytest.MonkeyPatch, group: str, block: bool
) -> None:
    monkeypatch.setattr(capacity, "given", lambda *_: capacity.Given(RESERVATION, group, block))
    ran = eks_program(capacityReservation=RESERVATION, shared=False)
    template = ran["gpus-template"].inputs
    target = template["capacityReservationSpecification"]["capacityReservationTarget"]
    assert target == {"capacityReservationId": RESERVATION}
    assert template.get("placement") == ({"groupName": group} if group else None) and "together" not in ran.declared
    assert ran["gpus"].inputs["capacityType"] == ("CAPACITY_BLOCK" if block else "ON_DEMAND")
    assert template.get("instanceMarketOptions") == ({"marketType": "capacity-block"} if block else None)


def test_running_nodes_keep_their_template_unless_they_may_be_replaced(eks_program: Program) -> None:
    assert eks_program()["gpus"].ignore_changes == ("launchTemplate",)
    assert eks_program(replaceNodes=True)["gpus"].ignore_changes == ()


def test_the_nodes_end_at_max_hours_without_us(eks_program: Program) -> None:
    ends = eks_program(maxHours=7)["ends"]
    assert ends.inputs["hours"] == 7 and ends.inputs["group"] == "eks-gpus-0123"


# --- how it goes ---


def test_what_the_cluster_left_is_removed_between_cluster_and_network(eks_program: Program) -> None:
    ran = eks_program()
    assert {"cluster", "gpus", "system"} & ran.closure("swept") == set()
    assert "swept" in ran["cluster"].needs
    holds = {"network", "private-subnet", "second-subnet", "public-subnet", "nodes-group", "lustre-group"}
    assert holds <= ran.closure("swept")


def test_nodes_go_before_the_rights_and_the_network_that_they_need(eks_program: Program) -> None:
    ran = eks_program()
    for group in ("gpus", "system"):
        assert {"node-AmazonEKSWorkerNodePolicy", "nat", "private-joined", "nodes-out"} <= ran.closure(group)
    assert "cluster-AmazonEKSClusterPolicy" in ran["cluster"].needs, "EKS removes what it made with this right"


# --- inventory and bill ---


def test_the_inventory_says_how_to_reach_it_and_what_it_has(eks_program: Program) -> None:
    found = eks_program(nodes=3).kubernetes
    assert (found.name, found.cluster_name, found.region, found.namespace) == (
        "aws-eks",
        NAME,
        "us-east-1",
        "trainyard",
    )
    assert (found.endpoint, found.certificate_authority) == (EKS["endpoint"], "LS0tLS1CRUdJTg==")
    assert (found.authentication, found.workers, found.gpus_per_worker, found.efa_per_worker) == ("eks", 3, 8, 4)
    assert (found.gpu_architecture, found.efa_gbps, found.cores_per_worker) == ("sm_80", 400, 48)
    assert found.image == f"123456789012.dkr.ecr.us-east-1.amazonaws.com/{FULL_NAME}-images"
    assert (found.shared_dir, found.shared_claim, found.data_url) == ("/fsx", "fsx", f"s3://{FULL_NAME}-use1")


def test_the_bill_tells_idle_from_full(eks_keys: dict[str, str], eks_program: Program) -> None:
    lines = aws_eks.bill(settings(eks_keys))
    assert [line.what.partition(":")[0] for line in lines if line.on_demand] == ["p4d.24xlarge", "gp3-gb-month"]
    always = {line.what.partition(":")[0] for line in lines if not line.on_demand}
    assert always == {
        *("eks-cluster", "m7i.large", "gp3-gb-month", "fsx-lustre-persistent2-125-gb-month", "nat-gateway"),
        *("public-ipv4", "kms-key-month", "ecr-gb-month", "s3-gb-month"),
    }
    assert eks_program().kubernetes.hourly_usd == pytest.approx(table.total(lines))
    assert aws_eks.SUMS.full_at_once


# --- what is refused ---


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"instanceType": "p3dn.24xlarge"}, "instanceType = 'p3dn.24xlarge': must be a size of"),
        ({"instanceType": "p3dn.24xlarge"}, "it is one of cluster aws-gpu"),
        (
            {"image": "ami-0123456789abcdef0"},
            "image = 'ami-0123456789abcdef0': must be bake, which here means EKS's own",
        ),
        ({"baseImage": "ami-0eeeeeeeeeeeeeeee"}, "must be empty on aws-eks: nothing is baked"),
        ({"publicNodes": "all"}, "publicNodes = 'all': must be head, which here means none"),
        ({"idleMinutes": 30}, "idleMinutes = 30: must be 0 on aws-eks: only maxHours ends its nodes"),
        ({"diskGb": 40}, "diskGb = 40: must be at least 80"),
        ({"cidr": "10.0.0.0/25"}, "cidr = '10.0.0.0/25': must be a network of /16 to /24 on aws-eks"),
        ({"nodes": 6, "cidr": "10.0.0.0/24"}, "room for 6 nodes and their pods, 136 addresses in its first half"),
        ({"capacityReservation": RESERVATION, "spot": True}, "must be empty with spot"),
        ({"zone": "use1-az3"}, "zone = 'use1-az3': must be another zone: EKS has no control plane in it"),
        ({"profile": "native"}, "profile = 'native': must be cuda on cluster aws-eks"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_before_anything_is_declared(
    eks_program: Program, changed: dict[str, object], why: str
) -> None:
    assert why in refusal(eks_program, **changed)


def test_every_size_of_network_has_room_for_what_it_says(eks_keys: dict[str, str]) -> None:
    for nodes, cidr in ((5, "10.0.0.0/24"), (64, "10.0.0.0/20")):
        wanted = load("aws-eks", {**eks_keys, "nodes": str(nodes), "cidr": cidr})
        assert eks_network.plan(wanted).private.num_addresses - 5 >= 16 * nodes + 3


def test_every_type_has_a_driver_and_bf16() -> None:
    assert {known.gpu_architecture for known in machine_types.CHOICES["aws-eks"].types.values()} == {
        *("sm_80", "sm_86", "sm_89", "sm_90"),
    }
