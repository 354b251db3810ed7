"""End this node when its hours are over or nobody uses the cluster. A timer runs it, from the image's first boot on.

A worker asks the head before it goes, and tells it that somebody is logged in here. What trains is warned and stopped
in time by the job's own programs, which read the record. Nothing may keep a node whose hours are over: the record is in
memory (/run), a file that cannot be read or written counts as missing, and a setting that makes no sense as not set.
"""

import json
import os
import re
import runpy
import subprocess
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

MINUTE = 60
NEVER = 1e12
ROOT = Path(os.environ.get("TRAINYARD_PREFIX", "/"))
NAME = "run/trainyard/limits.json"
RECORD = ROOT / NAME
FIRST = ROOT / "var/lib/trainyard/first-boot.json"
ALLOWED = {
    "TRAINYARD_MODE": "bake|node|both",
    "TRAINYARD_CLUSTER": "local|aws-xeon|azure-xeon",
    "TRAINYARD_MAX_HOURS": "[0-9]{1,5}",
    "TRAINYARD_IDLE_MINUTES": "[0-9]{1,5}",
    "TRAINYARD_NODE": "[a-z0-9-]+",
}
Record = dict[str, Any]


def settings() -> dict[str, str]:
    """What the image and /etc/trainyard.env say, as far as it makes sense; else a limit that fits the cluster."""
    found = {}
    for name in ("opt/trainyard/image.env", "etc/trainyard.env"):
        with suppress(OSError):
            for line in (ROOT / name).read_text("utf-8-sig", "replace").splitlines():
                key, _, value = line.partition("=")
                if key.startswith("TRAINYARD_") and re.fullmatch(ALLOWED.get(key, ".*"), value):
                    found[key] = value
    free = found.get("TRAINYARD_CLUSTER") == "local"
    limits = {"TRAINYARD_MAX_HOURS": "0" if free else "24", "TRAINYARD_IDLE_MINUTES": "0" if free else "60"}
    return {**limits, "TRAINYARD_NODE": "unnamed", **found}


SETTINGS = settings()
HEAD = SETTINGS.get("TRAINYARD_ROLE") == "head"


def load(path: Path) -> Record:
    """A record; empty: there is none, or none that can be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def save(path: Path, record: Record) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".new").write_text(json.dumps(record))
        path.with_suffix(".new").replace(path)
    except OSError as error:
        say(f"{path} cannot be written: {error}", wall=False)


def say(text: str, *, wall: bool = True) -> None:
    """To the console and to whoever is logged in. That nobody can be told changes nothing."""
    with suppress(OSError, subprocess.SubprocessError):
        print(text, flush=True)
        subprocess.run(["wall", text] if wall else ["true"], check=False, timeout=10)


def first_boot(before: Record, now: float) -> Record:
    """When this node booted first, kept over reboots. A copy of its disk in another machine is another node."""
    instance = ""  # known from the first second of a boot on, which cloud-init's own id is not
    for name in ("sys/class/dmi/id/product_uuid", "etc/machine-id"):
        with suppress(OSError):
            instance = f"{instance} {(ROOT / name).read_text().strip()}".strip()
    on_disk = load(FIRST)
    known = [on_disk] if on_disk.get("instance") == instance else []
    for found in (*known, before.get("first")):
        if isinstance(found, dict) and isinstance(found.get("time"), int | float) and 0 < found["time"] < now + MINUTE:
            return found
    began = now
    with suppress(OSError, ValueError, IndexError):
        # Since its init began: /proc/uptime alone is that of a container's host.
        ticks = int((ROOT / "proc/1/stat").read_text().rpartition(")")[2].split()[19])
        up = float((ROOT / "proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
        began = now - up
    if not on_disk:
        with suppress(OSError):
            began = min(began, FIRST.stat().st_mtime)  # a record that is there and broken
    first = {"time": int(began), "instance": instance}
    save(FIRST, first)
    return first


def used() -> str:
    """By bootstrap, else job, else login; empty: by nobody."""
    # On the head: what a worker has told of itself.
    found = {"login" for mark in RECORD.parent.glob("limits.json.*") if time.time() - mark.stat().st_mtime < 2 * MINUTE}
    for process in ROOT.glob("proc/[0-9]*"):
        try:
            command, environ = ((process / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue  # it has ended
        login = b"SSH_CONNECTION=" in environ or b"login\0" in command or b"ssm-session-worker" in command
        if b"bootstrap/bootstrap.sh" in command:
            found.add("bootstrap")
        elif b"TRAINYARD_JOB=" in environ or b"/launch\0keep" in command or b"/launch\0supervise" in command:
            found.add("job")
        elif login and NAME.encode() not in command:  # who only looks at the record does not count
            found.add("login")
    return min(found, default="")


def ask(by: str) -> Record:
    """The head's record; empty: it does not answer."""
    mark = f"sudo touch /{NAME}.{SETTINGS['TRAINYARD_NODE']}; " if by else ""
    ssh = ["runuser", "-u", "trainyard", "--", "ssh", "-nxo", "BatchMode=yes", "-o", "ConnectTimeout=5", "node1"]
    try:
        return dict(json.loads(subprocess.check_output([*ssh, f"{mark}cat /{NAME}"], timeout=20)))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return {}


def why(record: Record) -> str:
    """Why the node is to end now; empty: it stays."""
    now, by, limit = record["time"], record["used"], record["idle_minutes"] * MINUTE
    # A job that is still at its last checkpoint has five minutes more.
    if now > record["deadline"] + 5 * MINUTE * (by == "job") and by != "bootstrap":
        return "its hours are over"
    idle = now - record["idle_since"]
    if not limit or (idle < limit and (HEAD or by != "login")):
        record["head_heard"] = now
        return ""
    if not HEAD:
        told = ask(by)
        if told:
            record["head_heard"] = now
            idle = 0 if told["used"] else min(idle, told["time"] - told["idle_since"])
        elif by or now - record["head_heard"] < 10 * MINUTE:
            return ""  # it may be booting
    return "nobody uses it" if idle > limit + 2 * MINUTE * HEAD else ""  # the head goes last, as it is asked


def end(record: Record) -> None:
    if SETTINGS.get("TRAINYARD_CLUSTER") == "azure-xeon":
        runpy.run_path(str(Path(__file__).parent / "azure-xeon/end.py"))["end"](record, say, SETTINGS)
        return
    say(f"this node ends: {record['ends']}")
    record["tries"] = record.get("tries", 0) + 1
    save(RECORD, record)
    power_off(record["tries"])


def power_off(tries: int) -> None:
    """Down in order; by force when that fails, or has been asked for four times and this node is still here; and when
    that fails as well, by the kernel. The kernel of a container is its host's, and takes no such order."""
    ways = [["systemctl", "poweroff", "-i"], ["systemctl", "poweroff", "-f"]]
    for way in ways[min(tries // 5, 2) :]:
        try:
            subprocess.run(way, check=True, timeout=MINUTE)
            return
        except (OSError, subprocess.SubprocessError) as error:
            say(f"this node cannot be ended so: {error}")
    for key in ("s", "o"):  # write what is in memory to the disk, off
        (ROOT / "proc/sysrq-trigger").write_text(key)
        time.sleep(2)


def look(record: Record, before: Record) -> None:
    now = record["time"]
    record["used"] = used()
    record |= {key: before.get(key, now) for key in ("idle_since", "head_heard")}
    if record["used"]:
        record["idle_since"] = now
    if record["deadline"] - now < 10 * MINUTE and not record.get("warned"):
        record["warned"] = now
        say("this node ends in 10 minutes, as its hours are over")
    record["ends"] = why(record)
    if record["ends"]:
        end(record)
    else:
        for key in ("tries", "next_try", "failed"):
            record.pop(key, None)
    save(RECORD, record)


def main() -> None:
    now, before = time.time(), load(RECORD)
    first = first_boot(before, now)
    hours, idle = int(SETTINGS["TRAINYARD_MAX_HOURS"]), int(SETTINGS["TRAINYARD_IDLE_MINUTES"])
    if not hours and not idle:
        RECORD.unlink(missing_ok=True)
        subprocess.run(["systemctl", "stop", "--no-block", "trainyard-limits.timer"], check=False)
        return
    record = {**before, "time": now, "first": first, "idle_minutes": idle}
    record["deadline"] = first["time"] + hours * 3600 if hours else NEVER
    try:
        look(record, before)
    except Exception:
        # Whatever it is, it must not keep a node whose hours are over; and the next run begins without this record.
        traceback.print_exc()
        RECORD.unlink(missing_ok=True)
        if now > record["deadline"] + 5 * MINUTE:
            end({"time": now, "ends": "its hours are over"})
        raise


if SETTINGS.get("TRAINYARD_MODE") != "bake":
    main()
