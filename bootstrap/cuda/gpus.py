"""gpus.py RECORD: has this machine the GPUs, NVLinks and EFA cards that its settings say, and does torch run on them?

Writes what it found to RECORD, and prints it in one line; or prints the first thing that is wrong, with exit code 1.
record.py adds RECORD to the versions in ready.json, which `fab check` compares between the nodes.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

PREFIX = os.environ.get("TRAINYARD_PREFIX", "")
FIELDS = ("pci.bus_id", "name", "compute_cap", "driver_version", "memory.total")
EACH_GPU = """
import torch
for index in range(torch.cuda.device_count()):
    ones = torch.ones(64, 64, device=f"cuda:{index}")
    assert float((ones @ ones).sum()) == 64**3, f"GPU {index} computes wrongly"
print(torch.cuda.device_count())
"""


class Wrong(Exception):
    """What is wrong: one line."""


def run(*command: str) -> str:
    """A command's output. Raises Wrong with its last line."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    except FileNotFoundError:
        raise Wrong(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise Wrong(f"{' '.join(command[:2])} did not end in 180 s") from None
    if done.returncode:
        last = ([line for line in (done.stderr + done.stdout).splitlines() if line.strip()] or ["no message"])[-1]
        raise Wrong(f"{' '.join(command[:2])} ended with exit code {done.returncode}: {last.strip()}")
    return done.stdout


def on_the_bus() -> int:
    """NVIDIA's display and 3D controllers: there before any driver is."""
    found = 0
    for device in Path(f"{PREFIX}/sys/bus/pci/devices").glob("*"):
        vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        found += vendor == "0x10de" and kind.startswith(("0x0300", "0x0302"))
    return found


def gpus(text: str) -> list[dict[str, str]]:
    """From nvidia-smi --query-gpu=FIELDS --format=csv,noheader,nounits."""
    rows = [[word.strip() for word in line.split(",")] for line in text.splitlines() if line.strip()]
    return [dict(zip(FIELDS, row, strict=True)) for row in rows]


def active_links(text: str) -> list[int]:
    """NVLinks with a speed, of each GPU, from nvidia-smi nvlink --status."""
    parts = re.split(r"^GPU \d+:.*$", text, flags=re.M)[1:]
    return [len(re.findall(r"^\s*Link \d+: *[\d.]+ GB/s", part, re.M)) for part in parts]


def efa_cards(text: str) -> int:
    """Cards in the output of fi_info -p efa: their domains, each of which has several endpoints."""
    return len(
        {name.removesuffix("-rdm").removesuffix("-dgrm") for name in re.findall(r"^\s*domain: (\S+)", text, re.M)}
    )


def check(wanted: dict[str, str]) -> dict[str, str]:
    """What was found, in words. Raises Wrong."""
    for name in ("GPUS", "GPU_ARCHITECTURE"):
        if not wanted.get(name):
            raise Wrong(f"TRAINYARD_{name} is not set: what this machine should have is not known")
    count, architecture = int(wanted["GPUS"]), wanted["GPU_ARCHITECTURE"]
    seen = on_the_bus()
    if not seen:
        raise Wrong(
            f"this machine has no NVIDIA GPU on its PCI bus; profile cuda is for machines with them ({count} here)"
        )
    each = gpus(run("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"))
    if len(each) != count:
        raise Wrong(
            f"the driver shows {len(each)} GPUs, {seen} are on the PCI bus, and the machine should have {count}"
        )
    cards = {f"sm_{gpu['compute_cap'].replace('.', '')}" for gpu in each}
    if cards != {architecture}:
        raise Wrong(f"the GPUs are {', '.join(sorted(cards))} ({each[0]['name']}), and the image is for {architecture}")
    links = active_links(run("nvidia-smi", "nvlink", "--status")) if wanted.get("NVLINK") == "true" else []
    if wanted.get("NVLINK") == "true" and (len(links) != count or not all(links)):
        raise Wrong(f"NVLink is down: active links by GPU: {' '.join(map(str, links)) or 'none'}")
    efa = 0
    if expected := int(wanted.get("EFA_CARDS", "0")):
        efa = efa_cards(run(f"{PREFIX}/opt/amazon/efa/bin/fi_info", "-p", "efa"))
        if efa != expected:
            raise Wrong(f"EFA is off: fi_info -p efa shows {efa} cards, and the machine should have {expected}")
    shown = run(f"{PREFIX}/opt/trainyard/venv/bin/python", "-I", "-c", EACH_GPU).strip()
    if shown != str(count):
        raise Wrong(f"torch computes on {shown} of {count} GPUs")
    return {
        "gpus": f"{count} x {each[0]['name']} ({architecture})",
        "nvidia driver": each[0]["driver_version"],  # the one that runs, in place of the one that was installed
        "nvlinks of each gpu": " ".join(map(str, links)) or "none",
        "efa cards": str(efa),
    }


def main() -> int:
    """The exit code. What a machine should have comes from the variables TRAINYARD_*."""
    wanted = {
        key.removeprefix("TRAINYARD_"): value for key, value in os.environ.items() if key.startswith("TRAINYARD_")
    }
    try:
        found = check(wanted)
    except Wrong as wrong:
        print(wrong)
        return 1
    path = Path(sys.argv[1])
    path.with_suffix(".new").write_text(json.dumps(found, indent=1) + "\n")
    path.with_suffix(".new").replace(path)
    print(", ".join(f"{name}: {what}" for name, what in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
