"""End this node when its hours are over or nobody uses the cluster. A timer runs it, from the image's first boot on.

A worker asks the head before it ends, and reports to it that somebody is logged in here. A job's own programs read the
record and stop the job in time. No fault may keep a node whose hours are over: the record is in memory (/run), a file
that cannot be read or written counts as missing, and an invalid setting as not set.
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
    """The valid settings of the image and of /etc/trainyard.env; limits that are not set get the cluster's defaults."""
    found = {}
    for name in ("opt/trainyard/image.env", "etc/trainyard.env"):
        with suppress(OSError):
            for line in (ROOT / name).read_text("utf-8-sig", "replace").splitlines():
                key, _, value = line.partition("=")
                if key.startswith("TRAINYARD_") and re.fullmatch(ALLOWED.get(key, ".*"), value):
                    found[key] = value
    hours, idle = ("0", "0") if found.get("TRAINYARD_CLUSTER") == "local" else ("24", "60")
    return {"TRAINYARD_MAX_HOURS": hours, "TRAINYARD_IDLE_MINUTES": idle, "TRAINYARD_NODE": "unnamed", **found}


SETTINGS = settings()
HEAD = SETTINGS.get("TRAINYARD_ROLE") == "head"


def load(path: Path) -> Record:
    """A record; empty if there is none, or none that can be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def save(path: Path, record: Record) -> None:
    """Atomically: a reader sees the complete record or the one before. A failure is said and changes nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".new").write_text(json.dumps(record))
        path.with_suffix(".new").replace(path)
    except OSError as error:
        say(f"cannot write {path}: {error}", wall=False)


def say(text: str, *, wall: bool = True) -> None:
    """To the console and to whoever is logged in. A failure to do so changes nothing."""
    with suppress(OSError, subprocess.SubprocessError):
        print(text, flush=True)
        subprocess.run(["wall", text] if wall else ["true"], check=False, timeout=10)


def first_boot(before: Record, now: float) -> Record:
    """When this node booted first, kept over reboots. A copy of its disk in another machine is another node."""
    instance = ""  # unlike cloud-init's own id, these are known from the first second of a boot
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
        # The start of this machine's init: in a container, /proc/uptime is that of the host.
        ticks = int((ROOT / "proc/1/stat").read_text().rpartition(")")[2].split()[19])
        up = float((ROOT / "proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
        began = now - up
    if not on_disk:
        with suppress(OSError):
            began = min(began, FIRST.stat().st_mtime)  # a damaged record
    first = {"time": int(began), "instance": instance}
    save(FIRST, first)
    return first


def used() -> str:
    """What uses this node: "bootstrap", else "job", else "login", else ""."""
    # On the head: each worker with a login touches a file of its own (see ask_head).
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
        elif login and NAME.encode() not in command:  # a process that only reads the record does not count
            found.add("login")
    return min(found, default="")


def ask_head(by: str) -> Record:
    """The head's record, empty if it does not answer. `by`: what uses this node; if anything, the head is told so."""
    mark = f"sudo touch /{NAME}.{SETTINGS['TRAINYARD_NODE']}; " if by else ""
    ssh = ["runuser", "-u", "trainyard", "--", "ssh", "-nxo", "BatchMode=yes", "-o", "ConnectTimeout=5", "node1"]
    try:
        return dict(json.loads(subprocess.check_output([*ssh, f"{mark}cat /{NAME}"], timeout=20)))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return {}


def reason_to_end(record: Record) -> str:
    """Why the node must end now; empty if it stays."""
    now, by, limit = record["time"], record["used"], record["idle_minutes"] * MINUTE
    # A job has five more minutes to write its last checkpoint.
    if now > record["deadline"] + 5 * MINUTE * (by == "job") and by != "bootstrap":
        return "its hours are over"
    idle = now - record["idle_since"]
    if not limit or (idle < limit and (HEAD or by != "login")):
        record["head_heard"] = now
        return ""
    if not HEAD:
        head = ask_head(by)
        if head:
            record["head_heard"] = now
            idle = 0 if head["used"] else min(idle, head["time"] - head["idle_since"])
        elif by or now - record["head_heard"] < 10 * MINUTE:
            return ""  # the head may be booting
    return "nobody uses it" if idle > limit + 2 * MINUTE * HEAD else ""  # the head ends last: workers ask it


def end(record: Record) -> None:
    """Power this node off; a machine of Azure is deallocated. Counts the tries in the record and saves it first."""
    if SETTINGS.get("TRAINYARD_CLUSTER") == "azure-xeon":
        runpy.run_path(str(Path(__file__).parent / "azure-xeon/end.py"))["end"](record, say, SETTINGS)
        return
    say(f"this node ends: {record['ends']}")
    record["tries"] = record.get("tries", 0) + 1
    save(RECORD, record)
    power_off(record["tries"])


def power_off(tries: int) -> None:
    """An orderly shutdown; a forced one if that fails, or after four orderly ones without effect; if both fail, by the
    kernel, which a container cannot do (its kernel is the host's)."""
    commands = [["systemctl", "poweroff", "-i"], ["systemctl", "poweroff", "-f"]]
    for command in commands[min(tries // 5, 2) :]:
        try:
            subprocess.run(command, check=True, timeout=MINUTE)
            return
        except (OSError, subprocess.SubprocessError) as error:
            say(f"cannot power off this node: {error}")
    for key in ("s", "o"):  # sync the disks, power off
        (ROOT / "proc/sysrq-trigger").write_text(key)
        time.sleep(2)


def update(record: Record, before: Record) -> None:
    """Bring the record up to date, warn, and end the node if it is time. `before`: the last run's record."""
    now = record["time"]
    record["used"] = used()
    record |= {key: before.get(key, now) for key in ("idle_since", "head_heard")}
    if record["used"]:
        record["idle_since"] = now
    if record["deadline"] - now < 10 * MINUTE and not record.get("warned"):
        record["warned"] = now
        say("this node ends in 10 minutes, as its hours are over")
    record["ends"] = reason_to_end(record)
    if record["ends"]:
        end(record)
    else:
        for key in ("tries", "next_try", "failed"):
            record.pop(key, None)
    save(RECORD, record)


def main() -> None:
    """One look; the timer asks for the next 30 s later. On a node without limits it stops the timer instead."""
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
        update(record, before)
    except Exception:
        # No error may keep a node whose hours are over. The next run starts without this record.
        traceback.print_exc()
        RECORD.unlink(missing_ok=True)
        if now > record["deadline"] + 5 * MINUTE:
            end({"time": now, "ends": "its hours are over"})
        raise


if SETTINGS.get("TRAINYARD_MODE") != "bake":
    main()
