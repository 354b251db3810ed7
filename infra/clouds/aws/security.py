"""Security groups: traffic between the nodes, SSH from the operator's network, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.clouds.aws import machine_types
from infra.clouds.aws.names import named, titled
from infra.clouds.aws.network import ANYWHERE, Network
from infra.config.settings import Settings


@dataclass(frozen=True)
class Security:
    """The machines' security groups, and the rules that must exist before the machines."""

    nodes: aws.ec2.SecurityGroup
    builder: aws.ec2.SecurityGroup | None
    rules: list[pulumi.Resource]


def declare(
    settings: Settings, network: Network, *, builder: bool, opts: pulumi.ResourceOptions, ssh: bool = True
) -> Security:
    """`builder`: an image is going to be baked here. `ssh`: whether the operator's network reaches the nodes' sshd."""
    # A machine that names no group gets the default one: empty it, so that it allows nothing.
    aws.ec2.DefaultSecurityGroup(
        "default-group", vpc_id=network.vpc.id, ingress=[], egress=[], tags=titled(settings, "closed"), opts=opts
    )
    nodes, out = _group(settings, network, "nodes", f"Nodes of the Trainyard stack {settings.stack}", opts)
    # Rules are separate resources; with inline rules the group would delete these.
    between_nodes = aws.vpc.SecurityGroupIngressRule(
        "nodes-among-themselves",
        description="Everything from the other nodes",
        security_group_id=nodes.id,
        referenced_security_group_id=nodes.id,
        ip_protocol="-1",  # all protocols; then no ports may be given
        tags=titled(settings, "nodes-among-themselves"),
        opts=opts,
    )
    rules: list[pulumi.Resource] = [between_nodes, out]
    if ssh:
        rules.append(_from_operator(settings, nodes, opts))
    if machine_types.of(settings).efa_cards:
        # EFA's own traffic is no IP traffic: a rule for 0.0.0.0/0 does not let it out, one for the group does.
        # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html
        rules.append(
            aws.vpc.SecurityGroupEgressRule(
                "nodes-to-each-other",
                description="EFA to the other nodes",
                security_group_id=nodes.id,
                referenced_security_group_id=nodes.id,
                ip_protocol="-1",
                tags=titled(settings, "nodes-to-each-other"),
                opts=opts,
            )
        )
    if not builder:
        return Security(nodes, None, rules)
    # Nothing may connect to the builder: its commands come through Systems Manager, which it contacts itself.
    lets_nobody_in = f"Builder of the Trainyard stack {settings.stack}, which lets nobody in"
    baking, its_out = _group(settings, network, "builder", lets_nobody_in, opts)
    return Security(nodes, baking, [*rules, its_out])


def _from_operator(
    settings: Settings, nodes: aws.ec2.SecurityGroup, opts: pulumi.ResourceOptions
) -> aws.vpc.SecurityGroupIngressRule:
    return aws.vpc.SecurityGroupIngressRule(
        "operator-ssh",
        description="SSH from the operator network (adminCidr)",
        security_group_id=nodes.id,
        cidr_ipv4=str(settings.cloud.admin_cidr),
        ip_protocol="tcp",
        from_port=22,
        to_port=22,
        tags=titled(settings, "operator-ssh"),
        opts=opts,
    )


def _group(
    settings: Settings, network: Network, name: str, description: str, opts: pulumi.ResourceOptions
) -> tuple[aws.ec2.SecurityGroup, pulumi.Resource]:
    """A group that lets everything out, and the rule that does."""
    group = aws.ec2.SecurityGroup(
        f"{name}-group",
        name=named(settings, name),
        description=description,
        vpc_id=network.vpc.id,
        tags=titled(settings, name),
        opts=opts,
    )
    # Needed, as Pulumi's provider removes the egress rule that AWS adds to every new group.
    out = aws.vpc.SecurityGroupEgressRule(
        f"{name}-out",
        description="Packages, data and Systems Manager",
        security_group_id=group.id,
        cidr_ipv4=ANYWHERE,
        ip_protocol="-1",
        tags=titled(settings, f"{name}-out"),
        opts=opts,
    )
    return group, out
