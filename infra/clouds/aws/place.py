"""Where a stack's resources are looked for on AWS, and what is known of each kind of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from botocore import xform_name

from infra.clouds.aws import api
from infra.clouds.live_resource import LiveResource
from infra.clouds.naming import STACK_TAG, unique
from infra.errors import UsageError
from infra.prices import table
from infra.state.ownership import Claim

CLUSTER_TAG = "parallelcluster:cluster-name"
"""ParallelCluster's tag of all that it makes."""
INSIDE_TAG = "aws:cloudformation:stack-id"
"""CloudFormation's tag of all that it makes itself."""
KUBERNETES_TAG = "trainyard-cluster"
"""Our tag on what the launch templates of an EKS cluster make: EKS's name of the cluster."""
_OF_KUBERNETES = (
    *(KUBERNETES_TAG, "aws:eks:cluster-name", "eks:cluster-name", "cluster.k8s.amazonaws.com/name"),
    *("elbv2.k8s.aws/cluster", "KubernetesCluster"),
)
"""Tags of EKS and its controllers whose value is the cluster's name; one more has it in its key:"""
_OWNED = "kubernetes.io/cluster/"
EKS_END = "-eks"
"""What the name of an EKS cluster has after the stack's."""
AROUND = "-cluster"
"""What the name of the stack around a ParallelCluster has after the cluster's."""
Item = dict[str, Any]
"""A resource as AWS describes it."""


def kubernetes_cluster(tags: Mapping[str, str]) -> str:
    """EKS's name of the cluster that a resource with these tags was made for; empty: none."""
    for key in _OF_KUBERNETES:
        if tags.get(key):
            return tags[key]
    owned = (key for key, value in tags.items() if key.startswith(_OWNED) and value == "owned")
    return next(owned, "").removeprefix(_OWNED)


@dataclass(frozen=True)
class AccountRegion:
    """A region of an account, and whose resources are looked for there."""

    claim: Claim
    region: str
    account: str
    partition: str
    profile: str = ""
    """AWS profile for the requests; empty: the environment's credentials."""
    _stacks: list[Item] = field(default_factory=list, compare=False, repr=False)
    """CloudFormation's stacks, once they were asked for."""
    _eks: list[str] = field(default_factory=list, compare=False, repr=False)
    """Names of EKS's clusters, once they were asked for; the first is empty."""

    def client(self, service: str) -> Any:
        """boto3's client of a service in this region."""
        return api.client(service, self.region, self.profile)

    def described(self, key: str, **arguments: Any) -> list[Item]:
        """EC2's items of a kind, by their key in its answer: `VpcEndpoints` for describe_vpc_endpoints."""
        return api.pages(self.client("ec2"), f"describe_{xform_name(key)}", key, **arguments)

    def tagged(self, key: str, *, filters: str = "Filters", **more: Any) -> list[Item]:
        """Those with the stack's tag. The tag is checked again, in case the service ignores the argument `filters`."""
        more[filters] = api.where(f"tag:{STACK_TAG}", self.claim.stack)
        return [item for item in self.described(key, **more) if self.is_of_stack(item)]

    def is_of_stack(self, item: Item) -> bool:
        """Whether its tag has the stack's name; stacks of two owners may have the same name."""
        return self.claim.is_of_stack(api.tags(item))

    @property
    def eks_names(self) -> list[str]:
        """The names that EKS's clusters of this stack can have: each contains the stack's id."""
        return [f"trainyard-{unique(self.claim.stack, id_)}{EKS_END}" for id_ in sorted(self.claim.ids)]

    def has_eks(self, name: str) -> bool:
        """Whether EKS has a cluster of that name."""
        if not self._eks:
            self._eks.extend(["", *api.names(self.client("eks"), "list_clusters", "clusters")])
        return bool(name) and name in self._eks

    def holder(self, tags: dict[str, str]) -> str:
        """Id of what is in Pulumi's state for a resource with these tags, that another service made; empty: nothing.

        That is an EKS cluster, or a CloudFormation stack. A resource of a ParallelCluster belongs to the stack around
        the cluster (infra.clouds.aws.parallel_cluster).
        """
        if (name := kubernetes_cluster(tags)) and self.has_eks(name):
            return name
        cluster, inside = tags.get(CLUSTER_TAG), tags.get(INSIDE_TAG)
        if not cluster and not inside:
            return ""
        if not self._stacks:
            self._stacks.extend(api.pages(self.client("cloudformation"), "describe_stacks", "Stacks"))
        around = f"{cluster}{AROUND}" if cluster else ""
        for item in self._stacks:
            if item["StackName"] == around or (not around and item["StackId"] == inside):
                return str(item.get("RootId") or item["StackId"])
        return ""

    def may_name(self, name: str) -> bool:
        """Whether the stack may have given this name. `yard` also matches `yard-2...`, so callers check the tag too."""
        if name.startswith("/aws/lambda/pcluster-"):  # ParallelCluster names its functions' logs after no stack
            return True
        name = name.removeprefix("/aws/parallelcluster").removeprefix("/aws/eks")
        return f"{name.strip('/').replace('/', '-')}-".startswith(f"trainyard-{self.claim.stack}-")

    def price(self, sku: str, count: float = 1) -> float | None:
        """US dollars per hour; None if the table lacks the price."""
        try:
            return table.line("aws", self.region, sku, count).usd_per_hour
        except UsageError:
            return None


@dataclass(frozen=True)
class FoundResource:
    """A resource as its kind's lister found it; the fields of LiveResource."""

    tags: dict[str, str] | None
    """None: it lacks the stack's tag, but is in the way."""
    what: str
    owner: str
    id: str = ""
    usd_per_hour: float | None = 0.0
    holds: str = ""


@dataclass(frozen=True)
class ResourceKind:
    """A kind of AWS resource: how it is listed, with its price and tags, and how one of it is removed."""

    name: str
    types: str
    """The ARN resource types that it covers, `service:type`, separated by blanks."""
    listed: Callable[[AccountRegion], Iterator[FoundResource]]
    remove: Callable[[AccountRegion, str], None]
    """Removes the resource with this id. One that is already gone is no error."""
    prepare: Callable[[AccountRegion, list[str]], None] | None = None
    """Runs before the removal, with the ids of all that are going to be removed."""
    is_global: bool = False
    """Whether any region lists all of the account's."""
    only: tuple[str, ...] = ()
    """The kinds of cluster that have it; empty: every one. Of others it is not asked, which takes rights that they need
    not have: the account's tag index shows one that there is."""
    arn: str = ""
    """The form of its ARN, if its id in the state is a name, which two regions may both have."""

    def live(self, place: AccountRegion, found: FoundResource) -> LiveResource:
        """Its tags say whether the user or another owner has it."""
        holder = place.holder(found.tags or {})
        whole = (holder, found.id or found.owner) if holder not in ("", found.owner) else (found.owner, found.id)
        described = (self.name, found.what, *whole, found.usd_per_hour, found.holds)
        whose, arn = place.claim.whose(found.tags or {}), self.arn.format(place=place, name=found.owner)
        return LiveResource(*described, ours=found.tags is not None and not whose, whose=whose, arn=arn)
