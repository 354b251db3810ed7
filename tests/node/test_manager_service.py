"""A managed job's manager as a service of its head: how it is started and ended, and what it and an operator leave each
other."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from node.job import files, manager_service
from node.job.manager_service import ENDED, FOLDER, INVENTORY, MAKER, REPLY, REQUEST, SETTINGS

RECORD = ".trainyard/yard/managed/smoke-1.json"
BEGINNING = {
    "who": "ann@laptop (process 1)",
    "seconds": 30.0,
    "settings": {"nodes": 3},
    "inventory": {"schema": 1},
    "code": "/code/abc",
    "path": "/envs/def/bin",
    "record": {"job": "smoke-1"},
    "record_path": RECORD,
}
LOOK = {"who": "ann@laptop (process 1)", "seconds": 30.0, "reply": None, "inventory": None}


class Systemd:
    """Plays sudo and systemctl: what was asked, and how often systemd started the service again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.restarts, self.state, self.journal = "0", "running", ""
        monkeypatch.setattr(subprocess, "run", self.run)

    def run(self, argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        words = argv[2:] if argv[:2] == ["sudo", "-n"] else argv
        out = ""
        if words[0] == "tee":
            Path(words[1]).write_text(options["input"])
        elif words[0] == "rm":
            Path(words[2]).unlink(missing_ok=True)
        elif words[0] == "journalctl":
            out = self.journal
        elif words[1] == "show":
            out = f"NRestarts={self.restarts}\nSubState={self.state}\n"
        else:
            self.asked.append(" ".join(words[1:]))
        return subprocess.CompletedProcess(argv, 0, out, "")


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    (tmp_path / "units").mkdir()
    monkeypatch.setattr(manager_service, "_UNITS", tmp_path / "units")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return Systemd(monkeypatch)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    made = tmp_path / "runs/smoke-1"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def ask(run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def one(verb: str, **order: Any) -> Any:
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(order) + "\n"))
        assert manager_service.main([verb, str(run_dir)]) == 0
        return json.loads(capsys.readouterr().out)

    return one


def test_it_is_a_service_that_comes_back_with_its_head(
    ask: Any, run_dir: Path, tmp_path: Path, systemd: Systemd
) -> None:
    assert ask("start", **BEGINNING) == {"unit": "trainyard-manager-smoke-1.service"}
    unit = (tmp_path / "units/trainyard-manager-smoke-1.service").read_text()
    assert f"ExecStart=/envs/def/bin/python -m fabfile.managed.service {run_dir} /code/abc/launch\n" in unit
    assert "Environment=PYTHONPATH=/code/abc " in unit and "WantedBy=multi-user.target" in unit
    assert systemd.asked == ["daemon-reload", "enable --quiet --now trainyard-manager-smoke-1.service"]
    assert files.read(run_dir / FOLDER / SETTINGS) == {"nodes": 3}
    assert files.read(run_dir / FOLDER / INVENTORY) == {"schema": 1}
    assert (run_dir / FOLDER).stat().st_mode & 0o777 == 0o700


def test_one_that_is_started_again_forgets_what_was_asked_and_keeps_its_own_record(
    ask: Any, run_dir: Path, tmp_path: Path, systemd: Systemd
) -> None:
    ask("start", **BEGINNING)
    files.write(tmp_path / RECORD, {"job": "smoke-1", "replaced": 2, "decisions": [{}]})
    for name in (REQUEST, REPLY, ENDED):
        files.write(run_dir / FOLDER / name, {"id": "1"})
    systemd.asked.clear()
    ask("start", **BEGINNING)
    assert systemd.asked[0] == "disable --quiet --now trainyard-manager-smoke-1.service", "never two of them"
    assert files.read(tmp_path / RECORD)["replaced"] == 2
    ask("start", **{**BEGINNING, "record": {"job": "smoke-1", "replaced": 3, "decisions": [{}, {}]}})
    assert files.read(tmp_path / RECORD)["replaced"] == 3, "another machine has managed it meanwhile"
    assert [name for name in (REQUEST, REPLY, ENDED) if (run_dir / FOLDER / name).exists()] == []


def test_what_it_wants_is_seen_until_there_is_a_reply(ask: Any, run_dir: Path, systemd: Systemd) -> None:
    assert ask("look", **LOOK) == {"is_there": False}, "this head has no manager"
    ask("start", **BEGINNING)
    files.write(run_dir / FOLDER / REQUEST, {"id": "7", "names": ["node2"]})
    seen = ask("look", **LOOK, **{})
    assert seen["request"] == {"id": "7", "names": ["node2"]} and seen["ended"] == {} and seen["last"] == ""
    assert files.read(run_dir / FOLDER / MAKER)["until"] == pytest.approx(time.time() + 30, abs=5)
    new = {**LOOK, "reply": {"id": "7", "result": "made", "why": ""}, "inventory": {"schema": 1, "name": "yard"}}
    assert ask("look", **new)["request"] == {}
    assert files.read(run_dir / FOLDER / INVENTORY) == {"schema": 1, "name": "yard"}
    ask("look", **{**LOOK, "seconds": 0})
    assert not (run_dir / FOLDER / MAKER).exists(), "who goes says so"


def test_one_maker_at_a_time(ask: Any, run_dir: Path, systemd: Systemd) -> None:
    """Two would both run `up`."""
    ask("start", **BEGINNING)
    files.write(run_dir / FOLDER / REQUEST, {"id": "7", "names": ["node2"]})
    bob = {**LOOK, "who": "bob@desk (process 2)"}
    seen = ask("look", **bob)
    assert seen["maker"] == "ann@laptop (process 1)" and seen["request"] == {}
    ask("look", **{**LOOK, "seconds": 0})
    assert ask("look", **bob)["request"] == {"id": "7", "names": ["node2"]}, "she has gone"
    ask("start", **BEGINNING)
    assert ask("look", **bob)["maker"] == "ann@laptop (process 1)", "who starts it is its maker"


def test_one_that_cannot_run_says_why(ask: Any, systemd: Systemd) -> None:
    ask("start", **BEGINNING)
    systemd.restarts, systemd.state = "5", "auto-restart"
    systemd.journal = "ModuleNotFoundError: No module named 'fabric'\n"
    assert ask("look", **LOOK)["last"] == "ModuleNotFoundError: No module named 'fabric'"
    systemd.state = "running"
    assert ask("look", **LOOK)["last"] == "", "it was killed now and then, and runs"


def test_who_takes_the_job_back_gets_its_record(ask: Any, run_dir: Path, tmp_path: Path, systemd: Systemd) -> None:
    assert ask("stop", record_path=RECORD) == {"record": None} and systemd.asked == []
    ask("start", **BEGINNING)
    assert ask("stop", record_path=RECORD) == {"record": {"job": "smoke-1"}}
    assert "disable --quiet --now trainyard-manager-smoke-1.service" in systemd.asked
    assert (tmp_path / RECORD).exists() and [*(tmp_path / "units").iterdir()] == []
    assert ask("look", **LOOK) == {"is_there": False}


def test_one_that_has_ended_does_not_come_back(ask: Any, run_dir: Path, tmp_path: Path, systemd: Systemd) -> None:
    ask("start", **BEGINNING)
    manager_service.over(run_dir, 1, "smoke-1 was stopped: it has run for 6m (--max-hours 0.1)")
    assert ask("look", **LOOK)["ended"]["code"] == 1
    assert [*(tmp_path / "units").iterdir()] == []
