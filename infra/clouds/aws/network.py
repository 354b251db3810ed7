"""The network of a cluster: one zone, one subnet for each kind of route, fixed addresses.

`cidr` is divided the same way for all settings, so that no setting moves another node's address:

    first half        public nodes: the head, and the workers with publicNodes: all
    third quarter     workers behind the NAT gateway
    last quarter      machines with dynamic addresses: the NAT gateway and the builder, never in a node's way
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network

import pulumi
import pulumi_aws as aws

from infra.clouds.aws.names import after, arn, asking, named, policy, region, titled
from infra.clouds.aws.zones import zone
from infra.config.settings import FIRST_HOST, Settings
from infra.config.values import SettingsError

ANYWHERE = "0.0.0.0/0"
_KEPT = 1
"""Addresses that AWS reserves at a subnet's end; the four at its start are below FIRST_HOST."""


@dataclass(frozen=True)
class AddressPlan:
    """The subnets' address ranges."""

    public: IPv4Network
    private: IPv4Network
    edge: IPv4Network


@dataclass(frozen=True)
class Network:
    """What the nodes are attached to."""

    vpc: aws.ec2.Vpc
    public: aws.ec2.Subnet
    private: aws.ec2.Subnet | None
    edge: aws.ec2.Subnet | None
    ways_out: list[pulumi.Resource]
    """The routes out of the network: a machine that boots before them reaches nothing."""
    second: aws.ec2.Subnet | None = None
    """A private subnet in another zone, for a cluster whose control plane wants two."""


def plan(settings: Settings) -> AddressPlan:
    """Divide the network. Raises SettingsError if AWS does not accept its size, or the nodes do not fit."""
    cidr = settings.cidr
    if not 16 <= cidr.prefixlen <= 26:
        raise SettingsError("cidr", str(cidr), "a network of /16 to /26 on AWS, which is cut into subnets")
    public, rest = cidr.subnets()
    private, edge = rest.subnets()
    for subnet, count in ((public, _public_nodes(settings)), (private, settings.nodes - _public_nodes(settings))):
        most = subnet.num_addresses - FIRST_HOST - _KEPT
        if count > most:
            what = "public nodes" if subnet == public else "nodes behind the NAT gateway"
            raise SettingsError(
                "cidr", str(cidr), f"a network with room for {count} {what}; their subnet {subnet} has room for {most}"
            )
    return AddressPlan(public, private, edge)


def _public_nodes(settings: Settings) -> int:
    return settings.nodes if settings.cloud.public_nodes == "all" else 1


def is_public(settings: Settings, index: int) -> bool:
    """Whether node `index`, counted from 0, has a public address; the others are behind the NAT gateway."""
    return index < _public_nodes(settings)


def has_private(settings: Settings) -> bool:
    """Whether any node is behind the NAT gateway, which is billed by the hour."""
    return settings.nodes > _public_nodes(settings)


def address(settings: Settings, index: int) -> str:
    """The fixed private address of node `index`: the same offset in whichever subnet it is in."""
    subnets = plan(settings)
    return str((subnets.public if is_public(settings, index) else subnets.private)[FIRST_HOST + index])


def declare(settings: Settings, *, builder: bool, opts: pulumi.ResourceOptions) -> Network:
    """`builder`: an image is going to be baked here."""
    subnets, where = plan(settings), zone(settings)
    vpc, outside, way = of_the_internet(settings, opts)
    tables, ways_out = [outside.id], [way]

    def subnet(name: str, cidr: IPv4Network, table: aws.ec2.RouteTable) -> aws.ec2.Subnet:
        made, joined = subnet_of(settings, vpc, Place(name, cidr, where), table, opts)
        ways_out.append(joined)
        return made

    public, edge, private = subnet("public", subnets.public, outside), None, None
    if builder or has_private(settings):
        edge = subnet("edge", subnets.edge, outside)
    if edge is not None and has_private(settings):
        inside, through = behind_nat(settings, vpc, edge, after(opts, way))
        tables.append(inside.id)
        ways_out.append(through)
        private = subnet("private", subnets.private, inside)
    store(settings, vpc, tables, opts)
    return Network(vpc, public, private, edge, ways_out)


@dataclass(frozen=True)
class Place:
    """Where a subnet is."""

    name: str
    cidr: IPv4Network
    zone: pulumi.Input[str]
    """Id of its availability zone."""


def of_the_internet(
    settings: Settings, opts: pulumi.ResourceOptions
) -> tuple[aws.ec2.Vpc, aws.ec2.RouteTable, pulumi.Resource]:
    """The network, the routes of its public subnets, and the one of them that leads out."""
    vpc = aws.ec2.Vpc(
        "network",
        cidr_block=str(settings.cidr),
        enable_dns_support=True,
        enable_dns_hostnames=True,  # off by default; without it the names of AWS's services do not resolve inside
        tags=titled(settings),
        opts=opts,
    )
    gateway = aws.ec2.InternetGateway("internet", vpc_id=vpc.id, tags=titled(settings), opts=opts)
    return (vpc, *_routes(settings, vpc, "public", opts, gateway_id=gateway.id))


def _routes(
    settings: Settings, vpc: aws.ec2.Vpc, name: str, opts: pulumi.ResourceOptions, **gateway: pulumi.Input[str]
) -> tuple[aws.ec2.RouteTable, pulumi.Resource]:
    made = aws.ec2.RouteTable(f"{name}-routes", vpc_id=vpc.id, tags=titled(settings, name), opts=opts)
    # Routes are separate resources. Declaring some inline as well would make the two overwrite each other.
    to = {"route_table_id": made.id, "destination_cidr_block": ANYWHERE, **gateway}
    return made, aws.ec2.Route(f"{name}-out", **to, opts=opts)


def subnet_of(
    settings: Settings, vpc: aws.ec2.Vpc, place: Place, table: aws.ec2.RouteTable, opts: pulumi.ResourceOptions
) -> tuple[aws.ec2.Subnet, pulumi.Resource]:
    """A subnet, and what gives it its routes."""
    made = aws.ec2.Subnet(
        f"{place.name}-subnet",
        vpc_id=vpc.id,
        cidr_block=str(place.cidr),
        availability_zone_id=place.zone,
        map_public_ip_on_launch=False,  # each node's own setting decides
        tags=titled(settings, place.name),
        opts=opts,
    )
    name = f"{place.name}-joined"
    return made, aws.ec2.RouteTableAssociation(name, subnet_id=made.id, route_table_id=table.id, opts=opts)


def behind_nat(
    settings: Settings, vpc: aws.ec2.Vpc, edge: aws.ec2.Subnet, out: pulumi.ResourceOptions
) -> tuple[aws.ec2.RouteTable, pulumi.Resource]:
    """The routes of private subnets, and the one that leads out, by a NAT gateway in `edge`. `out`: its options, after
    the route to the internet."""
    opts, named = pulumi.ResourceOptions(provider=out.provider), titled(settings, "nat")
    address = aws.ec2.Eip("nat-address", domain="vpc", tags=named, opts=opts)
    nat = aws.ec2.NatGateway("nat", allocation_id=address.id, subnet_id=edge.id, tags=named, opts=out)
    return _routes(settings, vpc, "private", opts, nat_gateway_id=nat.id)


def store(settings: Settings, vpc: aws.ec2.Vpc, tables: list[pulumi.Output[str]], opts: pulumi.ResourceOptions) -> None:
    """An endpoint of S3 for the data set, which would otherwise be billed by the gigabyte at the NAT gateway."""
    aws.ec2.VpcEndpoint(
        "store",
        vpc_id=vpc.id,
        service_name=f"com.amazonaws.{region(settings)}.s3",
        vpc_endpoint_type="Gateway",
        route_table_ids=tables,
        tags=titled(settings, "store"),
        opts=opts,
    )


def log(settings: Settings, network: Network, provider: aws.Provider, opts: pulumi.ResourceOptions) -> None:
    """Flow logs, kept for a month."""
    name = named(settings, "flow-logs")
    account = aws.get_caller_identity(opts=asking(provider)).account_id
    group = aws.cloudwatch.LogGroup("flow-log-group", name=name, retention_in_days=30, opts=opts)
    trust = {
        "Principal": {"Service": "vpc-flow-logs.amazonaws.com"},
        "Action": "sts:AssumeRole",
        # The flow log service acts for every account: let it use this role only for our own flow logs.
        "Condition": {
            "StringEquals": {"aws:SourceAccount": account},
            "ArnLike": {"aws:SourceArn": arn(settings, "ec2", account, "vpc-flow-log/*")},
        },
    }
    role = aws.iam.Role("flow-log-role", name=name, assume_role_policy=policy(trust), opts=opts)
    write = {
        "Action": ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"],
        "Resource": [group.arn, pulumi.Output.concat(group.arn, ":*")],
    }
    rights = policy(write, {"Action": "logs:DescribeLogGroups", "Resource": "*"})
    allowed = aws.iam.RolePolicy("flow-log-rights", name=name, role=role.name, policy=rights, opts=opts)
    aws.ec2.FlowLog(
        "flow-log",
        vpc_id=network.vpc.id,
        traffic_type="ALL",
        log_destination_type="cloud-watch-logs",
        log_destination=group.arn,
        iam_role_arn=role.arn,
        tags=titled(settings),
        opts=after(opts, allowed),
    )
