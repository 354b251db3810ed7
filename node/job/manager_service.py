"""A managed job's manager as a service of the head (`fab train --managed --on head`), and what it asks of others there.

In the job's directory, .manager/
    settings.json    what the manager is told: the job, the stack's facts, its bounds (fabfile/managed/service.py)
    inventory.json   the cluster's inventory, as the head sees it
    request.json     machines that the manager wants made again, which only an operator with the stack's state can do
    reply.json       what came of it
    maker.json       until when an operator who can make machines counts as there: {"who", "until"}
    ended.json       how the manager ended: {"code", "text"}; without it, a manager that has ended was killed

The manager itself is fabfile.managed.service, with the packages that it needs in an environment of its own.
"""

from __future__ import annotations

import getpass
import json
import subprocess
import sys
import time
from pathlib import Path

from node.job import files
from node.job.files import Record

FOLDER = ".manager"
SETTINGS, INVENTORY, REQUEST, REPLY, MAKER, ENDED = (
    f"{name}.json" for name in ("settings", "inventory", "request", "reply", "maker", "ended")
)
_RESTARTS = 5
"""How often systemd has to have started a manager again for it to count as one that cannot run."""
_UNITS = Path("/etc/systemd/system")
_UNIT = """[Unit]
Description=Trainyard: the manager of job {job}
After=network-online.target ssh.service
RequiresMountsFor={run_dir}

[Service]
User={user}
WorkingDirectory=~
Environment=PATH={path}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
Environment=PYTHONPATH={code} PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1
ExecStart={path}/python -m fabfile.managed.service {run_dir} {code}/launch
Restart=on-failure
RestartSec=5
KillSignal=SIGINT
TimeoutStopSec=20

[Install]
WantedBy=multi-user.target
"""
"""A file of its own, not systemd-run: so it comes back with a head that reboots. The last word says which version of
the code is in use (node/install.py)."""


def main(argv: list[str]) -> int:
    """`manager start|record|stop|look RUN_DIR`, with an order as JSON on stdin; prints the answer as JSON.

    start {"who", "seconds", "settings", "inventory", "code", "path", "record"}: (re)start the manager, whose maker is
          `who` for so many seconds (0: nobody); of `record` and the head's own that with more decisions counts
    record, stop {"record_path"}: {"record": its record of the job, or null}; `stop` ends it before, if it runs
    look {"who", "seconds", "reply", "inventory"}: renew a maker's presence, and see what the manager wants; if another
         maker is there, only its name
    """
    verb, run_dir = argv[0], files.absolute(argv[1])
    order: Record = json.loads(sys.stdin.readline())
    answer = {"start": _start, "record": _record, "stop": _stop, "look": _look}[verb](run_dir, order)
    print(json.dumps(answer), flush=True)
    return 0


def unit_of(run_dir: Path) -> str:
    """The service's name."""
    return f"trainyard-manager-{run_dir.name}.service"


def _start(run_dir: Path, order: Record) -> Record:
    own = run_dir / FOLDER
    own.mkdir(mode=0o700, exist_ok=True)
    _end(run_dir)
    for name in (REQUEST, REPLY, ENDED, MAKER):
        (own / name).unlink(missing_ok=True)
    files.write(own / SETTINGS, order["settings"])
    files.write(own / INVENTORY, order["inventory"])
    if order["seconds"]:
        files.write(own / MAKER, {"who": order["who"], "until": time.time() + order["seconds"]})
    record = Path.home() / order["record_path"]
    if order["record"] is not None and _age(order["record"]) >= _age(files.read(record)):
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.write(record, order["record"])
    text = _UNIT.format(
        job=run_dir.name,
        user=getpass.getuser(),
        path=order["path"],
        code=order["code"],
        run_dir=str(run_dir),
    )
    _as_root("tee", str(_UNITS / unit_of(run_dir)), stdin=text)
    _as_root("systemctl", "daemon-reload")
    _as_root("systemctl", "enable", "--quiet", "--now", unit_of(run_dir))
    return {"unit": unit_of(run_dir)}


def _stop(run_dir: Path, order: Record) -> Record:
    """End the manager for good. Its job goes on."""
    _end(run_dir)
    (run_dir / FOLDER / ENDED).unlink(missing_ok=True)
    return _record(run_dir, order)


def _record(_run_dir: Path, order: Record) -> Record:
    return {"record": files.read(Path.home() / order["record_path"]) or None}


def _age(record: Record) -> int:
    """A manager's record only grows."""
    return len(record.get("decisions", ()))


def _look(run_dir: Path, order: Record) -> Record:
    """What the manager wants, and how it is. The inventory is the maker's newest."""
    own = run_dir / FOLDER
    if not ((_UNITS / unit_of(run_dir)).exists() or (own / ENDED).exists()):
        return {"is_there": False}
    known = {"is_there": True, "last": _why_it_fails(run_dir), "ended": files.read(own / ENDED)}
    maker = files.read(own / MAKER)
    if maker and maker["who"] != order["who"] and maker["until"] > time.time():
        return {**known, "request": {}, "maker": maker["who"]}
    if order["seconds"]:
        files.write(own / MAKER, {"who": order["who"], "until": time.time() + order["seconds"]})
    else:
        (own / MAKER).unlink(missing_ok=True)
    if order["inventory"] is not None and order["inventory"] != files.read(own / INVENTORY):
        files.write(own / INVENTORY, order["inventory"])
    if order["reply"] is not None:
        files.write(own / REPLY, order["reply"])
    request = files.read(own / REQUEST)
    if request and request.get("id") == files.read(own / REPLY).get("id"):
        request = {}
    return {**known, "request": request, "maker": ""}


def _why_it_fails(run_dir: Path) -> str:
    """The last words of a manager that systemd starts again and again; empty: it runs, or has ended."""
    asked = ["systemctl", "show", "--property=NRestarts,SubState", unit_of(run_dir)]
    shown = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    state = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    if state.get("SubState") not in ("auto-restart", "failed") or int(state.get("NRestarts", 0)) < _RESTARTS:
        return ""
    asked = ["sudo", "-n", "journalctl", "--unit", unit_of(run_dir), "--lines=1", "--output=cat"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or "it says nothing"


def over(run_dir: Path, code: int, text: str) -> None:
    """How the manager ended, in its own words; its service does not come back with the head."""
    files.write(run_dir / FOLDER / ENDED, {"code": code, "text": text})
    _remove(run_dir)


def _end(run_dir: Path) -> None:
    if (_UNITS / unit_of(run_dir)).exists():
        _remove(run_dir, "--now")
        _as_root("systemctl", "daemon-reload")


def _remove(run_dir: Path, *options: str) -> None:
    _as_root("systemctl", "disable", "--quiet", *options, unit_of(run_dir))
    _as_root("rm", "-f", str(_UNITS / unit_of(run_dir)))


def _as_root(*argv: str, stdin: str = "") -> None:
    subprocess.run(["sudo", "-n", *argv], input=stdin, stdout=subprocess.DEVNULL, text=True, check=True)
