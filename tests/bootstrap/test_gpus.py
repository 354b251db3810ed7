"""bootstrap/cuda/gpus.py: what nvidia-smi and fi_info print is read, and what is not as it should be is said."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from bootstrap_runner import cuda_module

SMI = """00000000:00:16.0, Tesla V100-SXM2-32GB, 7.0, 580.126.18, 32768
00000000:00:17.0, Tesla V100-SXM2-32GB, 7.0, 580.126.18, 32768
"""
NVLINK = """GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-0)
\t Link 0: 25.781 GB/s
\t Link 1: 25.781 GB/s
GPU 1: Tesla V100-SXM2-32GB (UUID: GPU-1)
\t Link 0: <inactive>
\t Link 1: 25.781 GB/s
"""
"""The form of https://docs.nvidia.com/deploy/nvidia-smi/, nvlink --status"""
FI_INFO = """provider: efa
    fabric: efa
    domain: rdmap83s0-rdm
    version: 204.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa
    domain: rdmap83s0-dgrm
    version: 204.0
    type: FI_EP_DGRAM
    protocol: FI_PROTO_EFA
"""
"""The form of https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html; one card with two endpoints"""


def test_the_commands_answers_are_read() -> None:
    program = cuda_module("gpus")
    assert [gpu["compute_cap"] for gpu in program.gpus(SMI)] == ["7.0", "7.0"]
    assert program.active_links(NVLINK) == [2, 1]
    assert program.efa_cards(FI_INFO) == 1 and program.efa_cards("fi_getinfo: -61 (No data available)") == 0


@pytest.fixture
def p3dn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, dict[str, str]]:
    """A machine of two V100 with one EFA card: its PCI bus, and what its commands print."""
    program = cuda_module("gpus")
    for slot in ("0000:00:16.0", "0000:00:17.0"):
        device = tmp_path / "sys/bus/pci/devices" / slot
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    answers = {
        "nvidia-smi": SMI,
        "nvlink": NVLINK.replace("<inactive>", "25.781 GB/s"),
        "efa": FI_INFO,
        "python": "2\n",
    }

    def run(*command: str) -> str:
        key = "nvlink" if "nvlink" in command else "efa" if command[-1] == "efa" else Path(command[0]).name
        return answers[key]

    monkeypatch.setattr(program, "PREFIX", str(tmp_path))
    monkeypatch.setattr(program, "run", run)
    return program, answers


WANTED = {"GPUS": "2", "GPU_ARCHITECTURE": "sm_70", "NVLINK": "true", "EFA_CARDS": "1"}


def test_a_machine_that_is_what_it_should_be(p3dn: tuple[ModuleType, dict[str, str]]) -> None:
    assert p3dn[0].check(WANTED) == {
        "gpus": "2 x Tesla V100-SXM2-32GB (sm_70)",
        "nvidia driver": "580.126.18",
        "nvlinks of each gpu": "2 2",
        "efa cards": "1",
    }


@pytest.mark.parametrize(
    ("part", "printed", "wanted", "why"),
    [
        (
            "nvidia-smi",
            SMI.splitlines()[0],
            {},
            "the driver shows 1 GPUs, 2 are on the PCI bus, and the machine should have 2",
        ),
        (
            "nvidia-smi",
            SMI.replace("7.0", "8.0"),
            {},
            "the GPUs are sm_80 (Tesla V100-SXM2-32GB), and the image is for sm_70",
        ),
        ("nvlink", "", {}, "NVLink is down: active links by GPU: none"),
        ("nvlink", NVLINK.replace("25.781 GB/s", "<inactive>"), {}, "NVLink is down: active links by GPU: 0 0"),
        ("efa", "fi_getinfo: -61", {}, "EFA is off: fi_info -p efa shows 0 cards, and the machine should have 1"),
        ("python", "1\n", {}, "torch computes on 1 of 2 GPUs"),
        ("python", "2\n", {"GPUS": ""}, "TRAINYARD_GPUS is not set: what this machine should have is not known"),
    ],
)
def test_what_is_not_as_it_should_be_is_said(
    p3dn: tuple[ModuleType, dict[str, str]], part: str, printed: str, wanted: dict[str, str], why: str
) -> None:
    program, answers = p3dn
    answers[part] = printed
    with pytest.raises(program.Wrong) as caught:
        program.check({**WANTED, **wanted})
    assert str(caught.value) == why
