"""End this node when its hours are over or nobody uses the cluster. A timer runs it, with /etc/trainyard.env.

A worker asks the head before it goes, and tells it that somebody is logged in here. What trains is warned and stopped
in time by the job's own programs, which read the record.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MINUTE = 60
LONGEST_WAIT = 10 * MINUTE
NEVER = 1e12
ROOT = Path(os.environ.get("TRAINYARD_PREFIX", "/"))
NAME = "var/lib/trainyard/limits.json"
RECORD = ROOT / NAME
HEAD = os.environ["TRAINYARD_ROLE"] == "head"

Record = dict[str, Any]


def save(record: Record) -> None:
    RECORD.with_suffix(".new").write_text(json.dumps(record))
    RECORD.with_suffix(".new").replace(RECORD)


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
    mark = f"sudo touch /{NAME}.{os.environ['TRAINYARD_NODE']}; " if by else ""
    ssh = ["runuser", "-u", "trainyard", "--", "ssh", "-nxo", "BatchMode=yes", "-o", "ConnectTimeout=5", "node1"]
    try:
        return dict(json.loads(subprocess.check_output([*ssh, f"{mark}cat /{NAME}"], timeout=20)))
    except (subprocess.SubprocessError, ValueError):
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


def say(text: str) -> None:
    print(text, flush=True)
    subprocess.run(["wall", text], check=False)


def end(record: Record) -> None:
    if os.environ["TRAINYARD_CLUSTER"] == "azure-xeon":
        deallocate(record)
        return
    say(f"this node ends: {record['ends']}")
    save(record)
    subprocess.run(["systemctl", "poweroff", "-i"], check=True)


def deallocate(record: Record) -> None:
    """Ask Azure to deallocate this node, for ever. Never power it off: Azure bills a machine that is only powered off,
    and nothing would be left on it to ask again. After a failure the next try is later: 30 s, 60 s, ... 10 minutes.
    """
    if 0 < record.get("next_try", 0) - record["time"] <= LONGEST_WAIT:
        return
    say(f"this node ends: {record['ends']}")
    program = [sys.executable, "-IS", str(Path(__file__).parent / "azure-xeon/deallocate.py")]
    try:
        done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=2 * MINUTE)
        record["failed"] = "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        record["failed"] = str(error)
    if not record["failed"]:
        record.pop("tries", None)
        record.pop("next_try", None)
        return  # Azure switches the node off in a moment; if it is still here at the next run: again
    record["tries"] = record.get("tries", 0) + 1
    wait = min(30 * 2 ** min(record["tries"] - 1, 10), LONGEST_WAIT)
    record["next_try"] = record["time"] + wait
    record["failed"] += f"; try {record['tries']}, the next in {wait} s"
    say(f"this node is STILL PAID FOR: {record['failed']}; you can end it yourself: az vm deallocate")


def main() -> None:
    now, hours = time.time(), int(os.environ["TRAINYARD_MAX_HOURS"])
    before = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record = {"idle_since": now, "head_heard": now, **before, "time": now, "used": used()}
    record["idle_minutes"] = int(os.environ["TRAINYARD_IDLE_MINUTES"])
    if record["used"]:
        record["idle_since"] = now
    first = json.loads((RECORD.parent / "first-boot.json").read_text())["time"]
    record["deadline"] = first + hours * 3600 if hours else NEVER
    if not before.get("warned") and record["deadline"] - now < 10 * MINUTE:
        record["warned"] = now
        say("this node ends in 10 minutes, as its hours are over")
    record["ends"] = why(record)
    if record["ends"]:
        end(record)
    else:
        for key in ("tries", "next_try", "failed"):
            record.pop(key, None)
    save(record)


if os.environ["TRAINYARD_MODE"] != "bake":
    main()
