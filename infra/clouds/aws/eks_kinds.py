"""The kinds of resources that only a stack with an EKS cluster has: the cluster with its nodes, images, a key, and what
EKS and its controllers leave behind, found by the cluster's name (LEFT)."""

from __future__ import annotations

from collections.abc import Iterator

from infra.clouds.aws import api, eks, removal
from infra.clouds.aws.eks_left import LEFT
from infra.clouds.aws.place import AccountRegion, FoundResource, ResourceKind
from infra.clouds.naming import STACK_TAG

_WAIT_S = 3600.0
"""Seconds for a cluster's node groups to go, and then for the cluster."""


def _clusters(place: AccountRegion) -> Iterator[FoundResource]:
    client = place.client("eks")
    for name in api.names(client, "list_clusters", "clusters"):
        if place.may_name(name):
            item = client.describe_cluster(name=name)["cluster"]
            if place.claim.is_of_stack(tags := item.get("tags", {})):
                what = f"{name} of Kubernetes {item.get('version', '?')} {item['status']}"
                # Its machines are listed with their own prices.
                yield FoundResource(tags, what, name, usd_per_hour=place.price(eks.SKU))


def _remove_cluster(place: AccountRegion, name: str) -> None:
    """Delete the node groups, which drains and ends their machines, and then the cluster."""
    client, pace = place.client("eks"), max(1.0, removal.POLL_S)
    config = {"Delay": int(pace), "MaxAttempts": int(_WAIT_S / pace)}
    groups = api.names(client, "list_nodegroups", "nodegroups", clusterName=name)
    for group in groups:
        removal.call(client, "delete_nodegroup", clusterName=name, nodegroupName=group)
    for group in groups:
        waiter = client.get_waiter("nodegroup_deleted")
        waiter.wait(clusterName=name, nodegroupName=group, WaiterConfig=config)
    removal.call(client, "delete_cluster", (*removal.HELD, "ResourceInUseException"), name=name)
    client.get_waiter("cluster_deleted").wait(name=name, WaiterConfig=config)


def _repositories(place: AccountRegion) -> Iterator[FoundResource]:
    client = place.client("ecr")
    for item in api.pages(client, "describe_repositories", "repositories"):
        name = item["repositoryName"]
        if place.may_name(name):
            tags = api.tags({"Tags": client.list_tags_for_resource(resourceArn=item["repositoryArn"])["tags"]})
            if place.claim.is_of_stack(tags):
                images = api.pages(client, "describe_images", "imageDetails", repositoryName=name)
                size = sum(image.get("imageSizeInBytes", 0) for image in images) / 1e9
                # Without `holds`: an image is made again from the checkout.
                what = f"{name} with {len(images)} images, {size:.1f} GB"
                yield FoundResource(tags, what, name, usd_per_hour=place.price(eks.IMAGES_SKU, size) if size else 0.0)


def _keys(place: AccountRegion) -> Iterator[FoundResource]:
    """By the account's index of tags: a key has no name of its own. One that is being deleted costs nothing."""
    wanted = [{"Key": STACK_TAG, "Values": [place.claim.stack]}]
    index, kms = place.client("resourcegroupstaggingapi"), place.client("kms")
    arguments = {"TagFilters": wanted, "ResourceTypeFilters": ["kms:key"]}
    for item in api.pages(index, "get_resources", "ResourceTagMappingList", **arguments):
        if place.is_of_stack(item):
            key = kms.describe_key(KeyId=item["ResourceARN"])["KeyMetadata"]
            if key["KeyState"] not in ("PendingDeletion", "PendingReplicaDeletion"):
                what, price = f"{key['KeyId']} {key['KeyState']}", place.price(eks.KEY_SKU)
                yield FoundResource(api.tags(item), what, key["KeyId"], usd_per_hour=price)


def _remove_key(place: AccountRegion, name: str) -> None:
    removal.call(place.client("kms"), "schedule_key_deletion", KeyId=name, PendingWindowInDays=eks.KEY_DAYS)


EKS_KINDS = (
    ResourceKind(
        "EKS cluster",
        "eks:cluster eks:nodegroup eks:addon eks:access-entry eks:podidentityassociation",
        _clusters,
        _remove_cluster,
        only=(eks.CLUSTER,),
        arn="arn:{place.partition}:eks:{place.region}:{place.account}:cluster/{name}",
    ),
    *LEFT,
    ResourceKind(
        "image repository",
        "ecr:repository",
        _repositories,
        lambda place, name: removal.call(place.client("ecr"), "delete_repository", repositoryName=name, force=True),
        only=(eks.CLUSTER,),
        arn="arn:{place.partition}:ecr:{place.region}:{place.account}:repository/{name}",
    ),
    ResourceKind("key", "kms:key", _keys, _remove_key, only=(eks.CLUSTER,)),
)
"""In the order of removal, before EC2's: the cluster would start its machines anew."""
