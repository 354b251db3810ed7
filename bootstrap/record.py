"""Write a record: record.py image | ready | failed STEP REASON.

Every boot of every node runs it, so it must start fast: os, not pathlib (a third of the time).
"""
# ruff: noqa: PTH105, PTH112, PTH123, PTH208

import json
import os
import re
import sys
import time

STATE = os.environ["STATE"]
IMAGE_JSON = os.environ["IMAGE_JSON"]
WHO: dict[str, object] = {key: os.environ.get(f"TRAINYARD_{key.upper()}", "") for key in ("node", "mode")}
CPU_FLAGS = {"amx": {"amx_tile", "amx_bf16"}, "avx512_bf16": {"avx512_bf16"}, "avx512": {"avx512f"}}


def write(path: str, record: dict[str, object]) -> None:
    """Atomically: a reader sees the complete record or none."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)


def read(path: str) -> str:
    """A file's text; empty if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def seconds() -> dict[str, float]:
    """How long each step of the bootstrap has taken that is done, by its name."""
    events = [json.loads(line) for line in read(STATE + "/progress.jsonl").splitlines()]
    return {event["step"]: event["seconds"] for event in events if event["state"] == "done"}


def numa_nodes() -> int:
    """Number of NUMA nodes with processors; a node may have memory alone."""
    base = "/sys/devices/system/node"
    names = [name for name in os.listdir(base) if re.fullmatch(r"node\d+", name)] if os.path.isdir(base) else []
    return sum(bool(read(f"{base}/{name}/cpulist").strip()) for name in names) or 1


def cpu() -> dict[str, object]:
    """The machine's processors, not a container's share of them; the launcher handles quotas."""
    blocks = [dict(re.findall(r"^([^\t:]+?)\s*: ?(.*)$", block, re.M)) for block in read("/proc/cpuinfo").split("\n\n")]
    threads = [block for block in blocks if "processor" in block]
    cores = {(t.get("physical id"), t["core id"]) for t in threads if "core id" in t}
    flags = set(threads[0].get("flags", "").split()) if threads else set()
    found: dict[str, object] = {
        "model": threads[0].get("model name", "") if threads else "",
        "cores": len(cores) or len(threads),
        "threads": len(threads),
        "numa_nodes": numa_nodes(),
    }
    return found | {name: needed <= flags for name, needed in CPU_FLAGS.items()}


def system_versions() -> dict[str, str]:
    """Of the kernel that runs, and the distribution's name with its version; empty if it has none."""
    name = re.search(r'^PRETTY_NAME="?([^"\n]*)', read("/etc/os-release"), re.M)
    return {"kernel": os.uname().release, "os": name.group(1) if name else ""}


def image() -> None:
    """Write image.json: what was installed, and how long each step took. The environment is that of bootstrap.sh."""
    record = {
        "image": os.environ["TRAINYARD_IMAGE"],
        "profile": os.environ["TRAINYARD_PROFILE"],
        "collectives": os.environ["TRAINYARD_COLLECTIVES"],
        "versions": json.loads(read(STATE + "/versions.json")),
        "seconds": seconds(),
    }
    write(IMAGE_JSON, record)


def ready() -> None:
    """Write ready.json, of this boot: what `fab check` compares between the nodes. `time` is seconds of Unix time."""
    baked = json.loads(read(IMAGE_JSON))
    record = WHO | {key: baked[key] for key in ("profile", "collectives", "image")}
    gpus = json.loads(read(STATE + "/gpus.json") or "{}")  # of cuda/gpus.py, which has looked at this boot
    record |= {"versions": baked["versions"] | system_versions() | gpus, "cpu": cpu(), "seconds": seconds()}
    limits = read(STATE + "/limits").split()
    record |= {"limits": dict(item.split("=", 1) for item in limits), "time": time.time()}
    write(STATE + "/ready.json", record)


def failed(step: str, reason: str) -> None:
    """Write failed.json: which step, why, and the last 20 lines of the log."""
    log = read(os.environ["LOG"]).splitlines()[-20:]
    record = WHO | {"step": step, "reason": " ".join(reason.split()), "log": log, "time": time.time()}
    write(STATE + "/failed.json", record)


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    if kind == "failed":
        failed(*arguments)
    else:
        {"image": image, "ready": ready}[kind]()
