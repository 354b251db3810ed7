"""bootstrap/: its scripts, its pins, and its runner under a root of its own. No root, no boot, no network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

BOOTSTRAP = Path(__file__).parent.parent / "bootstrap"
SETTINGS = {
    "TRAINYARD_MODE": "both",
    "TRAINYARD_NODE": "node1",
    "TRAINYARD_ROLE": "worker",
    "TRAINYARD_STACK": "local",
    "TRAINYARD_PROFILE": "native",
    "TRAINYARD_COLLECTIVES": "gloo",
    "TRAINYARD_IMAGE": "key-1",
    "TRAINYARD_CLUSTER": "local",
    "TRAINYARD_MAX_HOURS": "0",
    "TRAINYARD_IDLE_MINUTES": "0",
}
VERSIONS_STEP = """echo '{"torch": "2.13.0"}' > "$STATE/versions.json" """


@dataclass(frozen=True)
class Machine:
    """A copy of bootstrap/ with steps of its own, and the root it runs under."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "var/lib/trainyard"

    def step(self, name: str, body: str) -> None:
        path = self.root / "bootstrap/steps" / name
        path.write_text(f'#!/usr/bin/env bash\nset -euo pipefail\n. "$BOOTSTRAP/lib.sh"\n{body}\n')
        path.chmod(0o755)

    def boot(self, **settings: str) -> subprocess.CompletedProcess[str]:
        lines = [f"{key}={value}\n" for key, value in (SETTINGS | settings).items() if value]
        (self.root / "etc/trainyard.env").write_text("".join(lines))
        return self.run()

    def run(self) -> subprocess.CompletedProcess[str]:
        # A systemctl of the test's own: it is about this root, and not about the machine that the tests run on.
        environment = {"PATH": f"{self.root}/bin:{os.environ['PATH']}", "TRAINYARD_PREFIX": str(self.root)}
        return subprocess.run(
            [self.root / "bootstrap/bootstrap.sh"], env=environment, capture_output=True, text=True, timeout=60
        )

    def program(self, name: str, body: str = "") -> None:
        path = self.root / "bin" / name
        path.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >>{self.root}/called\n{body}\n')
        path.chmod(0o755)

    def called(self) -> list[str]:
        return (self.root / "called").read_text().splitlines()

    def copy_step(self, name: str) -> None:
        """The real step, as the only one of its part."""
        for path in (self.root / "bootstrap/steps").glob("*/*"):
            path.unlink()
        shutil.copy(BOOTSTRAP / "steps" / name, self.root / "bootstrap/steps" / name)
        self.step("image/99-versions", VERSIONS_STEP)

    def record(self, kind: str) -> dict[str, object]:
        other = {"ready": "failed", "failed": "ready"}[kind]
        assert not (self.state / f"{other}.json").exists()
        record = json.loads((self.state / f"{kind}.json").read_text())
        assert isinstance(record, dict)
        return record

    def events(self) -> list[tuple[str, str]]:
        lines = (self.state / "progress.jsonl").read_text().splitlines()
        return [(event["step"], event["state"]) for event in map(json.loads, lines)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    shutil.copytree(BOOTSTRAP, tmp_path / "bootstrap", ignore=shutil.ignore_patterns("steps", "__pycache__"))
    for folder in ("bin", "etc", "bootstrap/steps/image", "bootstrap/steps/node"):
        (tmp_path / folder).mkdir(parents=True)
    machine = Machine(tmp_path)
    machine.program("systemctl")
    machine.step("image/10-first", "echo one")
    machine.step("image/20-second", VERSIONS_STEP)
    machine.step("node/10-third", "echo three")
    return machine


def scripts() -> list[Path]:
    return [*BOOTSTRAP.glob("*.sh"), *BOOTSTRAP.glob("steps/*/*")]


BUCKETS = {f"{cluster}/versions.env": "BUCKET_cloud" for cluster in ("aws-xeon", "azure-xeon")}


def pins(file: str = "versions.env") -> dict[str, str]:
    """The versions as a shell reads them."""
    command = f'set -a; . "{BOOTSTRAP}/{file}"; env -0'
    done = subprocess.run(["bash", "-c", command], env={"PATH": os.environ["PATH"]}, capture_output=True, check=True)
    pairs = (item.split("=", 1) for item in done.stdout.decode().rstrip("\0").split("\0"))
    return {key: value for key, value in pairs if key.isupper() or "_" in key}


def requirement_lists() -> list[str]:
    values = pins()
    return [values["COMMON_REQUIREMENTS"], values["BUCKET_both"], *(pins(file)[name] for file, name in BUCKETS.items())]


def test_shellcheck_finds_nothing() -> None:
    shellcheck = shutil.which("shellcheck") or Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([shellcheck, "-x", *scripts()], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_scripts_run_and_stop_at_the_first_error() -> None:
    for path in scripts():
        if path.name != "lib.sh":
            assert os.access(path, os.X_OK), f"{path} is not executable"
            assert "set -euo pipefail" in path.read_text(), path


def test_steps_are_numbered_uniquely_and_named_once() -> None:
    names = [path.name for path in BOOTSTRAP.glob("steps/*/*")]
    assert all(re.fullmatch(r"\d\d-[a-z]+", name) for name in names), names
    assert len({name[3:] for name in names}) == len(names)


def test_every_requirement_is_pinned() -> None:
    values = pins()
    for text in requirement_lists():
        lines = text.split("\n")[1:-1]
        assert lines == sorted(lines)
        assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in lines), lines
    for key, value in values.items():
        if key.endswith("_VERSION") or key.startswith(("TORCH_n", "TORCH_i", "ACCELERATE_")):
            assert re.fullmatch(r"[0-9]+(\.[0-9]+)+", value), key
    assert re.fullmatch(r"[0-9a-f]{64}", values["IMPI_SHA256"])


@pytest.mark.parametrize(
    ("cluster", "brings", "leaves"),
    [
        ("aws-xeon", {"s3fs", "botocore", "aiohttp"}, {"adlfs"}),
        ("azure-xeon", {"adlfs", "azure-identity", "aiohttp"}, {"s3fs"}),
        ("local", set(), {"s3fs", "adlfs", "aiohttp"}),
    ],
)
def test_a_node_gets_its_own_cloud_s_bucket(tmp_path: Path, cluster: str, brings: set[str], leaves: set[str]) -> None:
    """Each package once: two pins of one would not install."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/uv").write_text(f"#!/bin/sh\ncat >{tmp_path}/asked\n")
    (tmp_path / "bin/uv").chmod(0o755)
    step = f'VENV={tmp_path}; . "{BOOTSTRAP}/steps/image/40-libraries"'
    # lib.sh says where the environment is; here it is a folder with a uv that only listens.
    shell = f'. () {{ source "$@"; VENV={tmp_path}; }}; {step}'
    environment = {"PATH": os.environ["PATH"], "BOOTSTRAP": str(BOOTSTRAP), "TRAINYARD_PROFILE": "native"}
    done = subprocess.run(["bash", "-c", shell], env={**environment, "TRAINYARD_CLUSTER": cluster}, capture_output=True)
    assert done.returncode == 0, done.stderr
    names = [line.partition("==")[0] for line in (tmp_path / "asked").read_text().split()]
    assert len(names) == len(set(names))
    assert brings | {"fsspec", "accelerate"} <= set(names)
    assert not leaves & set(names)


def test_the_tests_run_what_a_node_has() -> None:
    """The versions of the environment that these tests run in are those of versions.env."""
    from importlib import metadata

    wanted = dict(line.split("==") for text in requirement_lists() for line in text.split())
    dev = tomllib.loads((BOOTSTRAP.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    pinned = dict(item.split("==") for item in dev if "==" in item)
    both = {name: version for name, version in wanted.items() if name in pinned}
    assert both.keys() >= {"s3fs", "adlfs", "tensorboard", "datasets"}
    assert both == {name: pinned[name] for name in both}
    assert metadata.version("protobuf") == wanted["protobuf"]


def test_no_step_installs_what_is_not_pinned() -> None:
    for path in BOOTSTRAP.glob("steps/*/*"):
        for package in re.findall(r'"([a-z][a-z0-9-]+)==([^"]*)"', path.read_text()):
            assert package[1].startswith("$"), f"{path}: the version of {package[0]} belongs in versions.env"


def test_cloud_config_is_static_and_says_the_essentials() -> None:
    text = (BOOTSTRAP / "cloud-config.yaml").read_text()
    assert text.startswith("#cloud-config\n")
    assert not re.search(r"\{\{|\{%|\$\{|## template", text)
    config = yaml.safe_load(text)
    (user,) = config["users"]
    assert user["name"] == "trainyard"
    assert user["lock_passwd"] is True
    assert "ssh_authorized_keys" not in user
    assert (config["ssh_pwauth"], config["disable_root"], config["ssh_deletekeys"]) == (False, True, False)
    assert config["package_upgrade"] is False
    assert any("--no-block" in str(command) for command in config["runcmd"])


def test_steps_run_in_order_and_leave_a_ready_record(machine: Machine) -> None:
    done = machine.boot()
    assert done.returncode == 0, done.stdout + done.stderr
    expected = [(step, state) for step in ("first", "second", "third") for state in ("start", "done")]
    assert machine.events() == expected
    ready = machine.record("ready")
    assert ready["node"] == "node1"
    assert ready["image"] == "key-1"
    versions, seconds, cpu = ready["versions"], ready["seconds"], ready["cpu"]
    assert isinstance(versions, dict) and isinstance(seconds, dict) and isinstance(cpu, dict)
    assert versions["torch"] == "2.13.0"
    assert versions["kernel"] == os.uname().release
    assert list(seconds) == ["first", "second", "third"]
    assert 1 <= cpu["cores"] <= cpu["threads"]
    assert cpu["numa_nodes"] >= 1
    assert isinstance(cpu["amx"], bool) and isinstance(cpu["avx512_bf16"], bool)
    assert "three" in (machine.root / "var/log/trainyard-bootstrap.log").read_text()


def test_second_boot_runs_the_node_part_alone(machine: Machine) -> None:
    assert machine.boot().returncode == 0
    assert machine.boot().returncode == 0
    assert machine.events() == [("third", "start"), ("third", "done")]
    assert machine.boot(TRAINYARD_IMAGE="key-2").returncode == 0
    assert machine.record("ready")["image"] == "key-2"
    assert ("first", "done") in machine.events()


def test_bake_runs_the_image_part_alone(machine: Machine) -> None:
    assert machine.boot(TRAINYARD_MODE="bake").returncode == 0
    assert [step for step, _ in machine.events()] == ["first"] * 2 + ["second"] * 2
    assert machine.record("ready")["mode"] == "bake"


def test_failing_step_is_named_with_its_reason_and_log(machine: Machine) -> None:
    machine.step("image/20-second", 'for i in {1..30}; do echo "line $i"; done; ls "/no/such \\"thing\\""')
    done = machine.boot()
    assert done.returncode == 1
    assert "failed in step second" in done.stdout
    failed = machine.record("failed")
    assert (failed["node"], failed["mode"], failed["step"]) == ("node1", "both", "second")
    reason, log = failed["reason"], failed["log"]
    assert isinstance(reason, str) and isinstance(log, list)
    assert "No such file" in reason and "exit code 2" in reason and "\n" not in reason
    assert len(log) == 20 and "line 30" in log
    assert machine.events()[-1] == ("second", "failed")
    assert not (machine.root / "opt/trainyard/image.json").exists()


def test_reason_of_a_step_that_knows_it(machine: Machine) -> None:
    machine.step("image/10-first", 'fail "collectives need more"')
    machine.boot()
    assert machine.record("failed")["reason"] == "collectives need more"


def test_rerun_after_a_mended_step_is_ready(machine: Machine) -> None:
    machine.step("image/10-first", "exit 3")
    assert machine.boot().returncode == 1
    machine.step("image/10-first", "true")
    assert machine.boot().returncode == 0
    machine.record("ready")


def test_hanging_step_ends_within_its_bound_with_all_its_children(machine: Machine) -> None:
    pids = machine.root / "pids"
    body = f'trap "" TERM; setsid sleep 301 & echo $! > {pids}; (sleep 302 & echo $! >> {pids}); sleep 303'
    machine.step("image/10-first", body)
    start = time.monotonic()
    assert machine.boot(STEP_TIMEOUT="1").returncode == 1
    assert time.monotonic() - start < 10
    assert machine.record("failed")["reason"] == "did not end within 1 s and was killed"
    for pid in pids.read_text().split():
        status = Path(f"/proc/{pid}/status")  # a zombie that nobody reaped yet is dead too
        assert not status.exists() or "State:\tZ" in status.read_text()


def test_stopped_from_outside_is_a_failure_with_a_record(machine: Machine) -> None:
    # Between the step and the runner stands `timeout`.
    machine.step("image/10-first", "read -r _ _ _ runner _ </proc/$PPID/stat; kill -TERM $runner; sleep 0.2")
    assert machine.boot().returncode == 143
    failed = machine.record("failed")
    assert (failed["step"], failed["reason"]) == ("first", "the bootstrap itself ended with code 143")


def test_two_runs_at_once_do_not_mix(machine: Machine) -> None:
    machine.step("image/10-first", '"$BOOTSTRAP/bootstrap.sh" || echo "second run: $?"')
    assert machine.boot().returncode == 0
    log = (machine.root / "var/log/trainyard-bootstrap.log").read_text()
    assert "another bootstrap is running\nsecond run: 1" in log


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"TRAINYARD_MODE": "cook"}, "TRAINYARD_MODE is 'cook' in /etc/trainyard.env, allowed: bake, node, both"),
        ({"TRAINYARD_PROFILE": ""}, "TRAINYARD_PROFILE is '' in /etc/trainyard.env, allowed: native, ipex"),
        ({"TRAINYARD_COLLECTIVES": "$(id)"}, "TRAINYARD_COLLECTIVES is '$(id)' in"),
        ({"TRAINYARD_IMAGE": ""}, "TRAINYARD_IMAGE is missing"),
        ({"TRAINYARD_NODE": ""}, "TRAINYARD_NODE is missing"),
        ({"STEP_TIMEOUT": "soon"}, "STEP_TIMEOUT is 'soon'"),
        ({"TRAINYARD_CLUSTER": "moon"}, "TRAINYARD_CLUSTER is 'moon' in /etc/trainyard.env, allowed: local, aws-xeon"),
        ({"TRAINYARD_MAX_HOURS": ""}, "TRAINYARD_MAX_HOURS is '' in /etc/trainyard.env, allowed: whole numbers from 0"),
        ({"TRAINYARD_IDLE_MINUTES": "1.5"}, "TRAINYARD_IDLE_MINUTES is '1.5'"),
    ],
)
def test_bad_settings_are_refused_before_any_step(machine: Machine, settings: dict[str, str], reason: str) -> None:
    assert machine.boot(**settings).returncode == 1
    failed = machine.record("failed")
    assert failed["step"] == "settings"
    assert reason in str(failed["reason"])
    assert machine.events() == []


def test_settings_from_an_editor_on_windows_are_read(machine: Machine) -> None:
    (machine.root / "etc/trainyard.env").write_text("".join(f"{k}={v}\r\n" for k, v in SETTINGS.items()), newline="")
    assert machine.run().returncode == 0
    assert machine.record("ready")["node"] == "node1"


def test_missing_settings_file_is_a_failure_with_a_record(machine: Machine) -> None:
    assert machine.run().returncode == 1
    assert "/etc/trainyard.env is missing" in str(machine.record("failed")["reason"])


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
def packages(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that lacks a package, with the real apt under this root: without a source, and so without network."""
    apt = shutil.which("apt-get", path="/usr/bin:/bin")
    if not apt:
        pytest.skip("no apt on this machine")
    machine.copy_step("image/20-packages")
    for folder in ("state/lists/partial", "cache/archives/partial", "etc"):
        (machine.root / "apt" / folder).mkdir(parents=True)
    (machine.root / "apt/status").touch()
    (machine.root / "apt/config").write_text(
        f'Dir::State "{machine.root}/apt/state"; Dir::State::status "{machine.root}/apt/status";\n'
        f'Dir::Cache "{machine.root}/apt/cache"; Dir::Etc "{machine.root}/apt/etc"; APT::Sandbox::User "";\n'
        "APT::Update::Post-Invoke {}; APT::Update::Post-Invoke-Success {}; DPkg::Post-Invoke {};\n"
    )
    machine.program("dpkg-query", "echo un")
    machine.program("apt-cache")
    real = (
        f'[[ "$*" != *update* ]] || APT_CONFIG={machine.root}/apt/config exec {apt} -c {machine.root}/apt/config "$@"'
    )
    machine.program("apt-get", real)
    return machine


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def hold(machine: Machine, seconds: float) -> subprocess.Popen[str]:
    """Another apt, as far as a lock is concerned."""
    lock = machine.root / "apt/state/lists/lock"
    argv = [sys.executable, "-c", HOLD, str(lock), str(seconds)]
    holder = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert holder.stdout and holder.stdout.readline() == "held\n"
    return holder


def test_the_lock_of_the_package_lists_is_waited_for(packages: Machine) -> None:
    with hold(packages, 4):
        began = time.monotonic()
        done = packages.boot(TRAINYARD_MODE="bake")
        assert done.returncode == 0, done.stdout
        assert time.monotonic() - began >= 3
    log = (packages.root / "var/log/trainyard-bootstrap.log").read_text()
    assert "another apt is at work: waiting for it" in log
    assert sum(" update" in line for line in packages.called()) >= 2
    assert sum(" install " in line and "numactl" in line for line in packages.called()) == 1


def test_a_lock_that_is_never_given_back_is_the_reason(packages: Machine) -> None:
    step = packages.root / "bootstrap/steps/image/20-packages"
    step.write_text(step.read_text().replace("LOCK_SECONDS:-300", "LOCK_SECONDS:-3"))
    with hold(packages, 60) as holder:
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
    argv = [sshd, "-T", "-f", config, "-h", machine.root / "key"]
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


def test_uv_own_settings_win_over_pips(tmp_path: Path) -> None:
    found = pip_settings({"PIP_INDEX_URL": "https://a", "UV_DEFAULT_INDEX": "https://mine", "HOME": str(tmp_path)})
    assert found["UV_DEFAULT_INDEX"] == "https://mine"
