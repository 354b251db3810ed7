"""A virtual machine: what the builder and the nodes have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_azure_native import compute, network

from infra.clouds.azure.access import Access
from infra.clouds.azure.names import USER, Base


@dataclass(frozen=True)
class Spec:
    """What varies between machines."""

    logical: str
    """Its name in the program; in Azure the stack's name is put before it."""
    hostname: str
    size: str
    nvme: bool
    """Whether its disk is NVMe; otherwise SCSI."""
    image: compute.ImageReferenceArgs
    storage: str
    disk_gb: int
    user_data: str
    """gzipped, then base64: the form that cloud-init accepts."""
    address: str = ""
    """Fixed private address; empty: any free one."""
    public: network.PublicIPAddress | None = None
    spot: bool = False
    one_thread: bool = False
    near: compute.ProximityPlacementGroup | None = None


def disk_name(base: Base, logical: str) -> str:
    """The name of the disk that a machine is made with."""
    return base.name(f"{logical}-disk")


def declare(
    base: Base, spec: Spec, subnet: network.Subnet, own: Access, *needed: pulumi.Resource, **options: Any
) -> compute.VirtualMachine:
    """The machine, with these resource options, and its network interface.

    It depends on what is `needed` and on its identity's right to deallocate it: so it can stop itself from its first
    boot on.
    """
    zone = base.settings.cloud.zone
    card = _interface(base, spec, subnet)
    return compute.VirtualMachine(
        spec.logical,
        vm_name=base.name(spec.logical),
        zones=[zone] if zone else None,
        hardware_profile=compute.HardwareProfileArgs(
            vm_size=spec.size,
            vm_size_properties=compute.VMSizePropertiesArgs(v_cpus_per_core=1) if spec.one_thread else None,
        ),
        security_profile=compute.SecurityProfileArgs(
            security_type="TrustedLaunch",
            uefi_settings=compute.UefiSettingsArgs(secure_boot_enabled=True, v_tpm_enabled=True),
        ),
        identity=compute.VirtualMachineIdentityArgs(
            type=compute.ResourceIdentityType.USER_ASSIGNED, user_assigned_identities=[own.identity]
        ),
        storage_profile=_storage(base, spec),
        os_profile=_system(base, spec),
        network_profile=compute.NetworkProfileArgs(
            # Detach: the interface is a separate resource. If Azure deleted it with a machine, the machine's
            # replacement would lack it.
            network_interfaces=[compute.NetworkInterfaceReferenceArgs(id=card.id, primary=True, delete_option="Detach")]
        ),
        diagnostics_profile=compute.DiagnosticsProfileArgs(
            boot_diagnostics=compute.BootDiagnosticsArgs(enabled=True)  # the serial console, for a node without SSH
        ),
        priority="Spot" if spec.spot else "Regular",
        # Deallocate: an evicted node keeps its disk, with checkpoints that may not be in the container yet.
        eviction_policy="Deallocate" if spec.spot else None,
        billing_profile=compute.BillingProfileArgs(max_price=-1) if spec.spot else None,
        proximity_placement_group=compute.SubResourceArgs(id=spec.near.id) if spec.near else None,
        **base.common(depends_on=[*needed, own.may_end], **options),
    )


def _interface(base: Base, spec: Spec, subnet: network.Subnet) -> network.NetworkInterface:
    address = network.NetworkInterfaceIPConfigurationArgs(
        name="private",
        primary=True,
        subnet=network.SubnetArgs(id=subnet.id),
        private_ip_allocation_method="Static" if spec.address else "Dynamic",
        private_ip_address=spec.address or None,
        public_ip_address=network.PublicIPAddressArgs(id=spec.public.id) if spec.public else None,
    )
    return network.NetworkInterface(
        f"{spec.logical}-interface",
        network_interface_name=base.name(f"{spec.logical}-interface"),
        enable_accelerated_networking=True,
        ip_configurations=[address],
        **base.common(),
    )


def _storage(base: Base, spec: Spec) -> compute.StorageProfileArgs:
    return compute.StorageProfileArgs(
        disk_controller_type="NVMe" if spec.nvme else "SCSI",
        image_reference=spec.image,
        os_disk=compute.OSDiskArgs(
            name=disk_name(base, spec.logical),
            create_option="FromImage",
            delete_option="Delete",
            caching=compute.CachingTypes.READ_WRITE,
            disk_size_gb=spec.disk_gb,
            managed_disk=compute.ManagedDiskParametersArgs(storage_account_type=spec.storage),
        ),
    )


def _system(base: Base, spec: Spec) -> compute.OSProfileArgs:
    """Azure requires an administrator. cloud-init does not create it beside the user that the user data asks for:
    `users:` without `default` makes it ignore the administrator, whose name and key are those of our user anyway.
    """
    key = compute.SshPublicKeyArgs(path=f"/home/{USER}/.ssh/authorized_keys", key_data=base.settings.public_key)
    return compute.OSProfileArgs(
        computer_name=spec.hostname,
        admin_username=USER,
        custom_data=spec.user_data,
        allow_extension_operations=True,  # needed for run commands
        linux_configuration=compute.LinuxConfigurationArgs(
            disable_password_authentication=True,
            provision_vm_agent=True,
            ssh=compute.SshConfigurationArgs(public_keys=[key]),
        ),
    )
