"""A machine of bootstrap_runner.py with the files of profile cuda."""

from __future__ import annotations

import shutil

from bootstrap_runner import BOOTSTRAP, VERSIONS_STEP, Machine

from infra import user_data

SETTINGS = {
    **{"TRAINYARD_PROFILE": "cuda", "TRAINYARD_CLUSTER": "aws-xeon", "TRAINYARD_GPU_ARCHITECTURE": "sm_70"},
    **{"TRAINYARD_GPUS": "8", "TRAINYARD_EFA_CARDS": "1", "TRAINYARD_NVLINK": "true", "TRAINYARD_GPU_RDMA": "false"},
}
"""A p3dn.24xlarge."""


def composed(profile: str) -> dict[str, str]:
    """The files of bootstrap/ as a machine with this profile gets them."""
    return {name: content.decode() for name, content, _ in user_data._scripts(BOOTSTRAP, "aws-xeon", profile)}


def with_cuda(machine: Machine) -> Machine:
    """Give it the files of profile cuda, and no step that does anything."""
    shutil.rmtree(machine.root / "bootstrap")
    for name, content, mode in user_data._scripts(BOOTSTRAP, "aws-xeon", "cuda"):
        path = machine.root / "bootstrap" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(int(mode, 8))
    for path in (machine.root / "bootstrap/steps").glob("*/*"):
        path.unlink()
    machine.step("image/99-versions", VERSIONS_STEP)
    machine.step("node/99-none", "true")
    return machine


def step(gpus: Machine, name: str) -> None:
    """Add one real step."""
    (gpus.root / "bootstrap/steps" / name).write_text(composed("cuda")[f"steps/{name}"])
