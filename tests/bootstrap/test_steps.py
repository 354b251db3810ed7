"""Single steps of bootstrap/, under a root of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from apt_lists import lists_held, real_apt
from bootstrap_runner import BOOTSTRAP, Machine


def test_node_refuses_an_image_of_another_key(machine: Machine) -> None:
    shutil.copy(BOOTSTRAP / "steps/node/10-image", machine.root / "bootstrap/steps/node/10-image")
    assert machine.boot(TRAINYARD_MODE="node").returncode == 1
    assert "never baked" in str(machine.record("failed")["reason"])
    assert machine.boot(TRAINYARD_MODE="bake").returncode == 0
    assert machine.boot(TRAINYARD_MODE="node").returncode == 0
    assert machine.boot(TRAINYARD_MODE="node", TRAINYARD_IMAGE="key-2").returncode == 1
    reason = str(machine.record("failed")["reason"])
    assert "key-1" in reason and "key-2" in reason


def test_collectives_that_the_profile_lacks_are_refused(machine: Machine) -> None:
    shutil.copy(BOOTSTRAP / "steps/image/10-preflight", machine.root / "bootstrap/steps/image/10-preflight")
    assert machine.boot(TRAINYARD_COLLECTIVES="ccl").returncode == 1
    failed = machine.record("failed")
    assert failed["step"] == "preflight"
    assert "collectives 'ccl' cannot go with profile 'native'" in str(failed["reason"])


def test_unreachable_index_is_the_reason(machine: Machine) -> None:
    shutil.copy(BOOTSTRAP / "steps/image/10-preflight", machine.root / "bootstrap/steps/image/10-preflight")
    versions = machine.root / "bootstrap/versions.env"
    text = re.sub(r"INTEL_INDEX=.*", "INTEL_INDEX=http://127.0.0.1:9/us/", versions.read_text())
    versions.write_text(text)
    machine.boot(TRAINYARD_COLLECTIVES="ccl", TRAINYARD_PROFILE="ipex")
    assert machine.record("failed")["reason"] == (
        "collectives 'ccl' needs oneccl-bind-pt 2.8.0, which only Intel's wheel index has, and http://127.0.0.1:9/us/ "
        "did not answer ([Errno 111] Connection refused); set collectives to gloo or open the way to it"
    )


# --- updates, locks and sshd ---


def needrestart(machine: Machine) -> str:
    """What needrestart makes of its configuration: how it restarts, and what it never does."""
    config = machine.root / "etc/needrestart/conf.d/60-trainyard.conf"
    program = f"""
    our %nrconf = (restart => 'a', override_rc => {{}});
    defined(do "{config}") or die "$@ $!";
    print "$nrconf{{restart}} ", map {{ "$_ $nrconf{{override_rc}}{{$_}}" }} keys %{{$nrconf{{override_rc}}}};
    """
    return subprocess.run(["perl", "-e", program], capture_output=True, text=True, check=True).stdout


def test_in_an_image_nothing_is_updated_by_itself_and_no_job_is_restarted(machine: Machine) -> None:
    machine.copy_step("image/15-updates")
    assert machine.boot(TRAINYARD_MODE="bake").returncode == 0
    masked = next(line.split()[2:] for line in machine.called() if line.startswith("systemctl mask"))
    assert {"apt-daily.timer", "apt-daily-upgrade.timer", "unattended-upgrades.service"} <= set(masked)
    assert "systemctl stop apt-daily.timer apt-daily-upgrade.timer" in machine.called()
    assert needrestart(machine) == "l (?^:^trainyard-) 0"


def test_somebody_s_own_machine_is_updated_as_before_and_no_job_is_restarted(machine: Machine) -> None:
    machine.copy_step("image/15-updates")
    machine.step("node/10-third", "echo three")
    assert machine.boot(TRAINYARD_MODE="both").returncode == 0
    assert not any("apt-daily" in line for line in machine.called())
    assert needrestart(machine) == "a (?^:^trainyard-) 0"


@pytest.fixture
def packages(machine: Machine) -> Machine:
    """A machine that lacks a package."""
    machine.copy_step("image/20-packages")
    real_apt(machine)
    machine.program("dpkg-query", "echo un")
    machine.program("apt-cache")
    return machine


def test_the_lock_of_the_package_lists_is_waited_for(packages: Machine) -> None:
    with lists_held(packages, 4):
        began = time.monotonic()
        done = packages.boot(TRAINYARD_MODE="bake")
        assert done.returncode == 0, done.stdout
        assert time.monotonic() - began >= 3
    log = (packages.root / "var/log/trainyard-bootstrap.log").read_text()
    assert "another apt is running: waiting for it" in log
    assert sum(" update" in line for line in packages.called()) >= 2
    assert sum(" install " in line and "numactl" in line for line in packages.called()) == 1


def test_a_lock_that_is_never_given_back_is_the_reason(packages: Machine) -> None:
    step = packages.root / "bootstrap/steps/image/20-packages"
    step.write_text(step.read_text().replace("LOCK_SECONDS:-300", "LOCK_SECONDS:-3"))
    with lists_held(packages, 60) as holder:
        assert packages.boot(TRAINYARD_MODE="bake").returncode == 1
        holder.kill()
    failed = packages.record("failed")
    assert failed["step"] == "packages" and "apt-get update: E: Could not get lock" in str(failed["reason"])


def test_what_apt_complains_of_otherwise_is_said_at_once(packages: Machine) -> None:
    packages.program("apt-get", "echo 'E: Unable to locate package numactl'; exit 100")
    began = time.monotonic()
    assert packages.boot(TRAINYARD_MODE="bake").returncode == 1
    assert time.monotonic() - began < 15
    assert packages.record("failed")["reason"] == "apt-get update: E: Unable to locate package numactl"


def test_sshd_drops_a_client_that_has_vanished_within_75_seconds(machine: Machine) -> None:
    machine.copy_step("image/85-system")
    assert machine.boot(TRAINYARD_MODE="bake").returncode == 0
    config = machine.root / "etc/ssh/sshd_config.d/60-trainyard.conf"
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if not sshd:
        pytest.skip("no sshd on this machine")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", machine.root / "key"], check=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # which its service has taken away with it, where it does not run
    argv: list[str | Path] = [sshd, "-T", "-f", config, "-h", machine.root / "key"]
    effective = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"clientaliveinterval 15", "clientalivecountmax 2", "tcpkeepalive yes"} <= set(effective)
    assert (machine.root / "opt/trainyard/image.env").read_text() == "TRAINYARD_CLUSTER=local\n"


def pip_settings(environment: dict[str, str]) -> dict[str, str]:
    script = 'eval "$(python3 -I "$1")"; env -0'
    command = ["bash", "-c", script, "-", str(BOOTSTRAP / "pip_settings.py")]
    done = subprocess.run(command, env={"PATH": os.environ["PATH"]} | environment, capture_output=True, check=True)
    return dict(item.split("=", 1) for item in done.stdout.decode().rstrip("\0").split("\0"))


def test_pip_settings_reach_uv(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://a/simple\nextra-index-url =\n  https://b\n  https://c\n")
    found = pip_settings(
        {"PIP_CONFIG_FILE": str(config), "PIP_FIND_LINKS": "/no/such/folder", "PIP_PROXY": "http://p:1"}
    )
    assert found["UV_DEFAULT_INDEX"] == "https://a/simple"
    assert found["UV_INDEX"] == "https://b https://c"
    assert found["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert found["HTTPS_PROXY"] == "http://p:1"
    assert "UV_FIND_LINKS" not in found


def test_settings_of_pip_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("index-url = https://a/simple\n")
    argv = [sys.executable, "-I", str(BOOTSTRAP / "pip_settings.py")]
    done = subprocess.run(argv, env={"PIP_CONFIG_FILE": str(config)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"pip's {config} cannot be read: File contains no section headers.\n"


def test_uv_own_settings_win_over_pips(tmp_path: Path) -> None:
    found = pip_settings({"PIP_INDEX_URL": "https://a", "UV_DEFAULT_INDEX": "https://mine", "HOME": str(tmp_path)})
    assert found["UV_DEFAULT_INDEX"] == "https://mine"
