"""aws-xeon under mocks: its network, and who may talk to whom."""

from __future__ import annotations

import ipaddress
import json

import pytest
from aws_mocks import ACCOUNT, BUCKET
from aws_xeon_program import Program, machines, one, skus, stage, unpacked
from program_recorder import STACK_ID

pytest_plugins = ["aws_xeon_fixtures"]


def test_the_subnets_are_in_one_zone_and_inside_the_network(program: Program) -> None:
    ran = program()
    subnets = ran.of("ec2/subnet:Subnet")
    assert {found.inputs["availabilityZoneId"] for found in subnets} == {"use1-az6"}
    assert not any("availabilityZone" in found.inputs for found in subnets)  # names differ from account to account
    inside = [ipaddress.IPv4Network(found.inputs["cidrBlock"]) for found in subnets]
    network = ipaddress.IPv4Network(one(ran, "ec2/vpc:Vpc").inputs["cidrBlock"])
    assert all(subnet.subnet_of(network) for subnet in inside)
    assert not any(a.overlaps(b) for a in inside for b in inside if a != b)


def test_addresses_are_fixed_and_inside_the_nodes_own_subnet(program: Program) -> None:
    ran = program(nodes=4)
    subnets = {f"{found.name}-id": found.inputs["cidrBlock"] for found in ran.of("ec2/subnet:Subnet")}
    addresses = [node.inputs["privateIp"] for node in machines(ran)]
    assert addresses == ["10.0.0.10", "10.0.0.139", "10.0.0.140", "10.0.0.141"]
    assert [node.private_ip for node in ran.cluster.nodes] == addresses
    for node in machines(ran):
        subnet = ipaddress.IPv4Network(subnets[node.inputs["subnetId"]])
        at = int(ipaddress.IPv4Address(node.inputs["privateIp"])) - int(subnet.network_address)
        assert 4 <= at < subnet.num_addresses - 1, "AWS keeps the first four and the last"


def test_what_takes_an_address_by_itself_is_never_in_a_nodes_way(program: Program) -> None:
    ran = program()
    taken = {ran[name].inputs["subnetId"] for name in ("nat", stage(ran)["builder"])}
    assert taken == {"edge-subnet-id"}
    assert "edge-subnet-id" not in {node.inputs["subnetId"] for node in machines(ran)}


def test_another_number_of_nodes_or_public_workers_moves_no_other_node(program: Program) -> None:
    few, many, public = program(nodes=2), program(nodes=5), program(nodes=2, publicNodes="all")
    for name in ("node1", "node2"):
        assert few[name].inputs == many[name].inputs
    assert few["node1"].inputs == public["node1"].inputs
    assert few["public-subnet"].inputs == public["public-subnet"].inputs


def test_the_head_alone_is_public_and_the_workers_go_out_by_nat(program: Program) -> None:
    ran = program()
    assert [node.inputs["associatePublicIpAddress"] for node in machines(ran)] == [True, False, False]
    assert {found.inputs["mapPublicIpOnLaunch"] for found in ran.of("ec2/subnet:Subnet")} == {False}
    out = {found.name: found.inputs for found in ran.of("ec2/route:Route")}
    assert out["private-out"]["natGatewayId"] == "nat-id" and "natGatewayId" not in out["public-out"]
    assert ran["private-joined"].inputs["routeTableId"] == "private-routes-id"
    assert ran["nat"].inputs["subnetId"] != "private-subnet-id" and "public-out" in ran["nat"].needs


@pytest.mark.parametrize("changed", [{"publicNodes": "all"}, {"nodes": 1}], ids=str)
def test_no_nat_gateway_is_paid_for_where_nobody_needs_one(program: Program, changed: dict[str, object]) -> None:
    ran = program(**changed)
    assert ran.of("NatGateway") == [] and ran.of("Eip") == []
    assert all(node.inputs["associatePublicIpAddress"] for node in machines(ran))
    assert ran.cluster.jump_host == ""
    assert all(node.ssh_host.startswith("198.51.100.") for node in ran.cluster.nodes)


def test_one_node_pays_for_no_gateway_and_stays_as_it_is_when_there_are_four(
    program: Program, keys: dict[str, str]
) -> None:
    one_node, four = program(nodes=1), program(nodes=4)
    assert one_node.of("NatGateway") == [] and "nat-gateway" not in skus(keys, nodes=1)
    assert skus(keys, nodes=1)["public-ipv4"] == 1
    assert one_node["node1"].inputs == four["node1"].inputs
    for name in ("network", "public-subnet", "edge-subnet", "template"):
        assert one_node[name].inputs == four[name].inputs, name


def test_the_data_sets_way_is_on_every_route_table(program: Program) -> None:
    ran = program()
    tables = {f"{found.name}-id" for found in ran.of("RouteTable")}
    assert set(one(ran, "VpcEndpoint").inputs["routeTableIds"]) == tables == {"public-routes-id", "private-routes-id"}
    assert one(ran, "VpcEndpoint").inputs["serviceName"] == "com.amazonaws.us-east-1.s3"


def test_the_network_is_logged_by_config(program: Program) -> None:
    assert program().of("FlowLog") == []
    logged = one(program(flowLogs=True), "FlowLog")
    assert logged.inputs["trafficType"] == "ALL" and "flow-log-rights" in logged.needs


def test_the_service_of_flow_logs_may_take_its_role_for_this_account_only(program: Program) -> None:
    """https://docs.aws.amazon.com/vpc/latest/userguide/flow-logs-iam-role.html"""
    ran = program(flowLogs=True)
    (trust,) = json.loads(ran["flow-log-role"].inputs["assumeRolePolicy"])["Statement"]
    assert trust["Condition"] == {
        "StringEquals": {"aws:SourceAccount": ACCOUNT},
        "ArnLike": {"aws:SourceArn": f"arn:aws:ec2:us-east-1:{ACCOUNT}:vpc-flow-log/*"},
    }
    rights = json.loads(ran["flow-log-rights"].inputs["policy"])["Statement"]
    assert [entry["Action"] for entry in rights] == [
        ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"],
        "logs:DescribeLogGroups",
    ]


# --- who may talk to whom ---


def test_ssh_is_let_in_from_the_operator_and_everything_from_the_nodes_themselves(program: Program) -> None:
    ran = program(adminCidr="198.51.100.0/24")
    rules = {found.name: found.inputs for found in ran.of("SecurityGroupIngressRule")}
    assert set(rules) == {"nodes-among-themselves", "operator-ssh"}
    ssh, among = rules["operator-ssh"], rules["nodes-among-themselves"]
    assert (ssh["cidrIpv4"], ssh["ipProtocol"], ssh["fromPort"], ssh["toPort"]) == ("198.51.100.0/24", "tcp", 22, 22)
    assert among["referencedSecurityGroupId"] == among["securityGroupId"] == "nodes-group-id"
    assert among["ipProtocol"] == "-1" and not {"fromPort", "cidrIpv4"} & set(among)


def test_groups_have_rules_of_their_own_and_all_say_what_for(program: Program) -> None:
    ran = program()
    rules = [*ran.of("SecurityGroupIngressRule"), *ran.of("SecurityGroupEgressRule")]
    groups = ran.of("ec2/securityGroup:SecurityGroup")
    assert all(found.inputs["description"] for found in (*rules, *groups))
    assert not any({"ingress", "egress"} & set(found.inputs) for found in groups)
    assert {found.inputs["securityGroupId"] for found in ran.of("EgressRule")} == {"nodes-group-id", "builder-group-id"}


def test_the_default_group_lets_nothing_through(program: Program) -> None:
    closed = one(program(), "DefaultSecurityGroup").inputs
    assert closed["ingress"] == [] and closed["egress"] == []


def test_machines_may_use_their_own_bucket_and_systems_manager(program: Program) -> None:
    ran = program()
    policy = json.loads(ran["role-data"].inputs["policy"])
    arn = f"arn:aws:s3:::{BUCKET}"
    assert {json.dumps(entry["Resource"]) for entry in policy["Statement"]} == {f'"{arn}"', f'"{arn}/*"'}
    actions = {action for entry in policy["Statement"] for action in entry["Action"]}
    assert all(action.startswith("s3:") and "*" not in action for action in actions)
    assert actions >= {"s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"}
    (agent,) = json.loads(ran["role-ssm"].inputs["policy"])["Statement"]
    assert {action.partition(":")[0] for action in agent["Action"]} == {"ssm", "ssmmessages", "ec2messages"}
    assert [action for action in agent["Action"] if action.startswith("ssm:")] == ["ssm:UpdateInstanceInformation"]
    assert len(agent["Action"]) == 11
    assert ran.of("RolePolicyAttachment") == [], "AWS's own policy reads every parameter of the account"
    assert ran[stage(ran)["builder"]].inputs["iamInstanceProfile"] == f"trainyard-aws-xeon-{STACK_ID}"
    assert one(ran, "LaunchTemplate").inputs["iamInstanceProfile"] == {"name": f"trainyard-aws-xeon-{STACK_ID}"}


def test_monitoring_is_a_right_to_our_own_metrics_a_word_to_the_nodes_and_a_price(
    program: Program, keys: dict[str, str]
) -> None:
    ran = program(monitoring=True)
    (allowed,) = json.loads(ran["role-metrics"].inputs["policy"])["Statement"]
    assert allowed["Action"] == "cloudwatch:PutMetricData"
    assert allowed["Condition"] == {"StringEquals": {"cloudwatch:namespace": "Trainyard"}}
    assert "role-metrics" in ran["node1"].needs
    builder, node = (unpacked(ran[name].inputs["userDataBase64"]) for name in (stage(ran)["builder"], "node1"))
    assert "TRAINYARD_MONITORING=true\n" in node and "TRAINYARD_MONITORING=" not in builder
    assert stage(ran) == stage(program()) and "role-metrics" not in program().declared
    assert skus(keys, monitoring=True)["cloudwatch-metric-month"] == 3 * 4
    assert skus(keys, monitoring=True)["cloudwatch-request"] == 3 * 60
    assert not any(name.startswith("cloudwatch") for name in skus(keys))
