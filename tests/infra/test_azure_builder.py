"""The scripts in Azure's builder, run as they are: its gate, and its own end."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import http_server
import pytest
from azure_arm import MACHINE
from http_server import Answer, Asked

from infra.clouds.azure import image


class Builder:
    """A directory that stands for the builder's root, and commands that stand for its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("bin", "var/lib/trainyard", "var/log", "run/cloud-init"):
            (root / folder).mkdir(parents=True)
        (root / "var/log/trainyard-bootstrap.log").write_text("one\n" * 2000 + "the last line\n")
        (root / "var/log/cloud-init-output.log").write_text("cloud-init says\n")
        self.command("systemctl", "[ $1 = restart ] && exit; [ $1 = is-active ] && echo activating; exit 3")
        self.command("sleep", "exit 0")

    def command(self, name: str, body: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def record(self, name: str, text: str, *, old: bool = False) -> None:
        path = self.root / "var/lib/trainyard" / name
        path.write_text(text)
        if old:
            subprocess.run(["touch", "-d", "2001-01-01", path], check=True)

    def run(self, seconds: float = 20) -> subprocess.CompletedProcess[str]:
        text = re.sub(r"(?<![\w.])/(var|run)/", rf"{self.root}/\1/", image.script("gate.sh"))
        path = f"{self.root}/bin:/usr/bin:/bin"
        return subprocess.run(
            ["bash", "-c", text], env={"PATH": path}, capture_output=True, text=True, timeout=seconds, check=False
        )


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


def test_the_gate_opens_for_the_record_and_says_which_image(builder: Builder) -> None:
    builder.record("ready.json", '{\n "mode": "bake",\n "image": "0123456789abcdef",\n "time": 1\n}\n')
    done = builder.run()
    assert (done.returncode, done.stdout) == (0, ' "image": "0123456789abcdef",\n')


def test_the_gate_stays_shut_for_a_failure_and_shows_the_logs_tail(builder: Builder) -> None:
    builder.record("failed.json", '{\n "step": "torch",\n "reason": "cannot install torch",\n "log": []\n}\n')
    done = builder.run()
    assert done.returncode == 1
    assert done.stdout.endswith('bake failed:  "step": "torch", "reason": "cannot install torch", \n')
    assert "the last line" in done.stdout and len(done.stdout) < 4096, "all of it fits into what Azure keeps"


def test_the_gate_does_not_take_an_older_boots_word(builder: Builder) -> None:
    builder.record("ready.json", '{\n "image": "0123456789abcdef"\n}\n', old=True)
    with pytest.raises(subprocess.TimeoutExpired):
        builder.run(2)


def test_the_gate_notices_a_bootstrap_that_never_began(builder: Builder) -> None:
    builder.command("systemctl", "[ $1 = restart ] && exit; [ $1 = is-active ] && echo inactive; exit 3")
    (builder.root / "run/cloud-init/result.json").write_text("{}")
    done = builder.run()
    assert done.returncode == 1
    assert "cloud-init is done and the bootstrap never began: cloud-init says" in done.stdout


def test_the_gate_gives_the_builder_three_hours_from_now(builder: Builder) -> None:
    """The end that its user data has set counts from the boot, and this may be another try in the same boot."""
    builder.command("systemctl", f'echo "$@" >>{builder.root}/called; [ $1 = restart ]')
    builder.record("ready.json", ' "image": "x"\n')
    assert builder.run().returncode == 0
    assert (builder.root / "called").read_text().splitlines()[0] == "restart trainyard-builder-end.timer"


def test_a_builder_that_would_not_end_by_itself_is_not_waited_for(builder: Builder) -> None:
    builder.command("systemctl", "exit 5")
    builder.record("ready.json", ' "image": "x"\n')
    done = builder.run()
    assert done.returncode == 1 and "the builder would not end by itself" in done.stdout


@pytest.fixture
def last_resort(builder: Builder) -> Builder:
    """What cloud-init runs first, run under a root of the test's."""
    builder.command("systemctl", f'echo "$@" >>{builder.root}/called')
    text = image.last_resort().replace("/run/", f"{builder.root}/run/")
    done = subprocess.run(
        ["bash", "-c", text],
        env={"PATH": f"{builder.root}/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return builder


def test_the_builders_user_data_sets_its_end_before_anything_else(last_resort: Builder) -> None:
    """The gate alone would not do: it runs once the agent answers, which it may never do. Nothing stays on the disk."""
    assert (last_resort.root / "called").read_text() == "start --no-block trainyard-builder-end.timer\n"
    timer = (last_resort.root / "run/systemd/system/trainyard-builder-end.timer").read_text()
    assert "OnActiveSec=3h\n" in timer and "OnUnitInactiveSec=1min\n" in timer, "and it tries again"
    written = {str(path.relative_to(last_resort.root)) for path in last_resort.root.rglob("*builder-end*")}
    assert {path.split("/")[0] for path in written} == {"run"}
    assert "poweroff" not in image.last_resort(), "which would go on to be billed"


def test_the_last_resort_deallocates_the_builder_by_its_own_identity(last_resort: Builder) -> None:
    def answer(asked: Asked) -> Answer:
        if asked.path.startswith("/metadata/identity/"):
            return Answer(body=b'{"access_token": "secret"}')
        if asked.path.startswith("/metadata/instance/"):
            return Answer(body=MACHINE.encode())
        return Answer(202)

    unit = (last_resort.root / "run/systemd/system/trainyard-builder-end.service").read_text()
    command = re.search(r"^ExecStart=/usr/bin/(.*)$", unit, re.MULTILINE)
    assert command
    with http_server.serve(answer) as server:
        environment = {"PATH": "/usr/bin:/bin", "TRAINYARD_IMDS": server.url, "TRAINYARD_ARM": server.url}
        done = subprocess.run(command[1].split(), env=environment, capture_output=True, timeout=30, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        last = server.asked[-1]
    assert (last.method, last.path) == ("POST", f"{MACHINE}/deallocate?api-version=2024-11-01")
    assert last.headers["authorization"] == "Bearer secret"


def test_systemd_knows_every_word_of_the_last_resort(last_resort: Builder) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze on this machine")
    units = sorted((last_resort.root / "run/systemd/system").glob("trainyard-builder-end.*"))
    argv: list[str | Path] = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
