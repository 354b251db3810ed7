"""What a scheduler, Slurm or Kubernetes, adds to a local stack: a layer over the nodes' image, and what they share."""

from __future__ import annotations

import pulumi

from infra import inventory
from infra.clouds import naming
from infra.clouds.local import cgroup, host
from infra.clouds.local.image import Image
from infra.clouds.local.kubernetes import configuration, folder, images, objects, programs
from infra.clouds.local.kubernetes import layer as kubernetes_layer
from infra.clouds.local.kubernetes.folder import Kubernetes
from infra.clouds.local.kubernetes.objects import Objects
from infra.clouds.local.layer import Layer, Recipe
from infra.clouds.local.nodes import Node
from infra.clouds.local.slurm import configuration as slurm_configuration
from infra.clouds.local.slurm import layer as slurm_layer
from infra.clouds.local.slurm.folder import Slurm
from infra.config.settings import Settings
from infra.config.values import SettingsError

SLURM, KUBERNETES = "slurm", "kubernetes"


def recipe(settings: Settings) -> Recipe | None:
    """Of the layer with the scheduler's software; None without a scheduler."""
    return {SLURM: slurm_layer.RECIPE, KUBERNETES: kubernetes_layer.RECIPE}.get(settings.local.scheduler)


def check(settings: Settings, image: str) -> None:
    """Raise UsageError if this machine or these settings cannot have the scheduler. Changes nothing."""
    if layer := recipe(settings):
        layer.check(image)
    if settings.local.scheduler != KUBERNETES:
        return
    least = configuration.LEAST_MEMORY_MB
    if settings.local.memory_mb < least:
        allowed = f"at least {least} with scheduler {KUBERNETES}, whose control plane is on {naming.node(0)}"
        raise SettingsError("memoryMb", settings.local.memory_mb, allowed)
    programs.check()


def declare(
    settings: Settings, image: str, golden: Image, opts: pulumi.ResourceOptions
) -> tuple[pulumi.Output[str], list[pulumi.Resource]]:
    """(the image that the nodes boot, what has to be there before they do). `image`: the profile's, `golden` once it is
    there."""
    local, stack = settings.local, settings.stack
    addresses = {naming.node(index): settings.address(index) for index in range(settings.nodes)}
    provider: slurm_layer.LayerProvider | kubernetes_layer.LayerProvider
    needed: pulumi.Resource
    match local.scheduler:
        case "slurm":
            name, provider = slurm_layer.NAME, slurm_layer.LayerProvider()
            conf = slurm_configuration.slurm_conf(stack, addresses, cpus=local.cpus, memory_mb=local.memory_mb)
            needed = Slurm(stack=stack, configuration=conf, opts=opts)
        case "kubernetes":
            name, provider = kubernetes_layer.NAME, kubernetes_layer.LayerProvider()
            needed = Kubernetes(stack=stack, nodes=addresses, opts=opts)
        case _:
            return golden.image, []
    return Layer(name, provider, stack=stack, over=image, parent=golden.image, opts=opts).image, [needed]


def of_kubernetes(settings: Settings, nodes: list[Node]) -> pulumi.Output[str]:
    """Declare what is inside the cluster of these nodes; returns its inventory."""
    machine = host.machine(settings)
    inside = pulumi.ResourceOptions(depends_on=nodes)
    made = Objects(stack=settings.stack, endpoint=folder.server(settings.address(0)), opts=inside)
    cluster = inventory.KubeCluster(
        name=settings.stack,
        kubeconfig=str(folder.kubeconfig(settings.stack)),
        namespace=folder.NAMESPACE,
        service_account=objects.ACCOUNT,
        image=images.JOB,
        workers=settings.nodes,
        gpus_per_worker=0,
        cores_per_worker=machine.cores,
        memory_gb=machine.memory_gb,
        shared_dir=folder.SHARED,
        shared_claim=objects.CLAIM,
        software=",".join(images.SOFTWARE),
        control_groups=str(cgroup.unified(settings.stack)),
    )
    return made.id.apply(lambda _: inventory.to_json(cluster))
