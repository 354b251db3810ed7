"""What cannot be used is one line that names it, exit code 2, and nothing is made: the real commands, no machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
import yaml
from bad_settings import BAD, OBVIOUS, assert_names
from hypothesis import given, settings
from hypothesis import strategies as st
from project import Project

from infra.clouds.local import paths
from infra.config.keys import KEYS

PREFLIGHT = """
import contextlib, io, json, sys
from infra import preflight
for line in sys.stdin:
    sys.argv = ["preflight", json.loads(line)]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = preflight.main()
    print(json.dumps([code, said.getvalue()]), flush=True)
"""
Preflight = Callable[[dict[str, object]], tuple[int, str]]


@pytest.fixture(scope="module")
def shared(make_shared_project: Callable[..., Project]) -> Iterator[Project]:
    """One project without pulumi; in the end nothing of it may ever have been made."""
    project = make_shared_project()
    yield project
    nothing_made(project)


@pytest.fixture(autouse=True)
def as_it_was(shared: Project) -> None:
    write(shared, {})


def write(project: Project, keys: dict[str, object]) -> None:
    """The stack's file: a network of its own, and these keys."""
    config = {"trainyard:cidr": project.cidr, **{f"trainyard:{key}": value for key, value in keys.items()}}
    (project.root / "stacks" / f"Pulumi.{project.stack}.yaml").write_text(yaml.safe_dump({"config": config}))


def nothing_made(project: Project) -> None:
    assert project.remaining() == []
    assert not paths.stack(project.stack).exists()
    assert not (project.home / ".trainyard").exists(), "no state of the embedded engine, no trusted keys"
    assert not list((project.home / "state").rglob(f"*{project.stack}*")), "no stack in Pulumi's backend"


def refused(project: Project, *verb: str, before: tuple[str, ...] = (), listed: str = "", **env: str) -> str:
    """The one line with which a verb refuses to begin; `listed`: what it has listed before, for its question."""
    done = subprocess.run(
        [*before, "fab", *verb],
        cwd=project.root,
        env={**project.env, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stdout and listed in done.stdout, done.stdout
    nothing_made(project)
    return done.stderr.strip()


def path_without(tool: str, project: Project, directory: Path) -> str:
    """The project's PATH, with every directory that has the tool replaced by links to the rest of it."""
    parts = []
    for number, part in enumerate(project.env["PATH"].split(os.pathsep)):
        if (Path(part) / tool).exists():
            mirror = directory / str(number)
            mirror.mkdir()
            for other in Path(part).iterdir():
                if other.name != tool:
                    (mirror / other.name).symlink_to(other)
            part = str(mirror)
        parts.append(part)
    return os.pathsep.join(parts)


# --- settings ---


@pytest.fixture(scope="module")
def preflight(shared: Project) -> Iterator[Preflight]:
    """The real pre-flight of the project, in one process that takes many stack files after each other."""
    argv = [sys.executable, "-c", PREFLIGHT]
    with subprocess.Popen(
        argv, cwd=shared.root, env=shared.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        to, back = _pipes(process)

        def ask(keys: dict[str, object]) -> tuple[int, str]:
            write(shared, keys)
            print(json.dumps(shared.stack), file=to, flush=True)
            code, message = json.loads(back.readline())
            return code, message

        yield ask
        to.close()
        process.wait(60)


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin and process.stdout
    return process.stdin, process.stdout


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=25)
@given(data=st.data())
def test_generated_settings_are_refused_by_the_preflight(key: str, data: st.DataObject, preflight: Preflight) -> None:
    code, message = preflight({key: data.draw(BAD[key])})
    assert code == 2
    assert_names(message.rstrip("\n"), key)


@pytest.mark.parametrize("keys, named", OBVIOUS.values(), ids=OBVIOUS.keys())
def test_obvious_mistakes_are_refused_by_the_preflight(
    keys: dict[str, object], named: str, preflight: Preflight
) -> None:
    code, message = preflight(keys)
    assert code == 2
    assert_names(message.rstrip("\n"), named)


@pytest.mark.parametrize(
    "verb, what",
    [
        ("up --yes", "no nodes"),
        ("preview", "a network 20 bits too small"),
        ("up --yes", "a missing key file"),
        ("preview", "an unknown profile"),
    ],
)
def test_the_verbs_refuse_before_they_begin(verb: str, what: str, shared: Project) -> None:
    keys, named = OBVIOUS[what]
    write(shared, keys)
    assert_names(refused(shared, *verb.split()), named)


def test_an_image_that_is_not_there_is_refused(shared: Project) -> None:
    write(shared, {"image": "0123456789abcdef"})
    assert refused(shared, "up", "--yes").startswith("image = '0123456789abcdef': must be 'bake' or a baked image")


def test_a_network_that_the_machine_is_in_already_is_refused(shared: Project) -> None:
    link = f"tyt{os.getpid()}"
    if subprocess.run(["ip", "link", "add", link, "type", "bridge"], capture_output=True).returncode != 0:
        pytest.skip("this kernel makes no links")
    try:
        address = shared.cidr.replace(".0/24", ".1/25")
        subprocess.run(["ip", "address", "add", address, "dev", link], check=True)
        subprocess.run(["ip", "link", "set", link, "up"], check=True)
        line = refused(shared, "up", "--yes")
        assert line.startswith(f"cidr = '{shared.cidr}': must be") and f"on {link}" in line
    finally:
        subprocess.run(["ip", "link", "delete", link], check=True)


# --- stacks ---


def test_a_file_that_is_not_yaml_is_named(shared: Project) -> None:
    path = shared.root / "stacks" / f"Pulumi.{shared.stack}.yaml"
    path.write_text("config: [\n  trainyard:nodes: 3\n")
    assert refused(shared, "up", "--yes").startswith(f"{path.name}: not YAML: ")


def test_an_unknown_stack_is_told_which_there_are(shared: Project) -> None:
    line = refused(shared, "up", "--yes", "--stack", "nope")
    assert line.startswith("stack = 'nope': must be") and shared.stack in line and "local" in line


@pytest.mark.parametrize("verb", ["destroy", "recover", "audit", "wait"])
def test_a_name_that_is_a_path_is_refused(verb: str, shared: Project) -> None:
    yes = ["--yes"] if verb in ("destroy", "recover") else []
    assert_names(refused(shared, verb, "--stack", "../..", *yes), "stack")
    assert (shared.home / ".ssh" / "id_ed25519").exists(), "the operator's home is untouched"


@pytest.mark.parametrize(
    ("verb", "listed"),
    [("up", ""), ("destroy", "it has no resources"), ("recover", "nothing of stack")],
    ids=["up", "destroy", "recover"],
)
def test_a_question_that_nobody_can_answer_is_not_asked(verb: str, listed: str, shared: Project) -> None:
    if verb == "up" and not list(paths.images().glob("*/image.json")) and shutil.disk_usage("/").free < 20 * 2**30:
        pytest.skip("the pre-flight would refuse this machine's disk first")
    assert refused(shared, verb, listed=listed).endswith("add --yes")


def test_a_question_without_any_input_is_not_asked(shared: Project) -> None:
    closed = ("sh", "-c", 'exec "$@" <&-', "sh")
    assert refused(shared, "destroy", before=closed, listed="it has no resources").endswith("add --yes")


# --- machines ---


def test_another_user_than_root_is_refused(shared: Project) -> None:
    """In a user namespace of its own, without any of root's rights on this machine; the files stay readable."""
    if subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode != 0:
        pytest.skip("this kernel allows no user namespaces")
    fab = shutil.which("fab", path=shared.env["PATH"])
    if subprocess.run(["unshare", "--user", "test", "-x", str(fab)]).returncode != 0:
        pytest.skip(f"{fab} is in a folder that is closed to others, such as a user's home")
    assert "only root" in refused(shared, "up", "--yes", before=("unshare", "--user"))


@pytest.mark.parametrize(
    "tool, expected",
    [
        ("apt-get", "no apt-get"),
        ("systemd-nspawn", "apt-get install systemd-container"),
    ],
)
def test_a_machine_without_a_tool_is_told_what_to_install(
    tool: str, expected: str, shared: Project, tmp_path: Path
) -> None:
    assert expected in refused(shared, "up", "--yes", PATH=path_without(tool, shared, tmp_path))


def test_too_little_disk_is_said_with_figures(shared: Project, tmp_path: Path) -> None:
    # In a mount namespace of its own: the small disk is gone with the command.
    mounted = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"', str(tmp_path))
    line = refused(shared, "up", "--yes", before=mounted, TRAINYARD_HOME=str(tmp_path))
    assert line.startswith(f"{tmp_path}: 0.0 GiB free, and ") and "GiB are needed" in line


def test_a_home_that_cannot_be_one_is_refused(shared: Project) -> None:
    assert_names(refused(shared, "up", "--yes", TRAINYARD_HOME="not/absolute"), "TRAINYARD_HOME")


# --- the same with pulumi ---


@pytest.fixture(scope="module")
def with_pulumi(make_shared_project: Callable[..., Project]) -> Project:
    return make_shared_project("pulumi")


def test_fab_refuses_before_pulumi_is_asked(with_pulumi: Project) -> None:
    write(with_pulumi, {"nodes": 0})
    assert_names(refused(with_pulumi, "up", "--yes"), "nodes")


def test_a_name_that_is_a_path_does_not_reach_pulumi(with_pulumi: Project) -> None:
    assert_names(refused(with_pulumi, "destroy", "--yes", "--stack", "../.."), "stack")


def test_pulumi_alone_refuses_with_the_same_line(with_pulumi: Project) -> None:
    project = with_pulumi
    env = {**project.env, "PULUMI_CONFIG_PASSPHRASE": "", "PULUMI_SKIP_UPDATE_CHECK": "true"}

    def pulumi(*args: str) -> subprocess.CompletedProcess[str]:
        argv = ["pulumi", *args, "--non-interactive", "--stack", project.stack]
        return subprocess.run(argv, cwd=project.root, env=env, capture_output=True, text=True, timeout=120)

    write(project, {})
    assert pulumi("stack", "init").returncode == 0
    try:
        write(project, {"cidr": "8.8.8.0/24"})
        done = pulumi("preview")
        assert done.returncode != 0 and "cidr = '8.8.8.0/24': must be a private network" in done.stdout + done.stderr
        write(project, {"nodes": "three"})
        typed = pulumi("preview")  # Pulumi itself holds the types of Pulumi.yaml
        assert typed.returncode != 0 and "nodes" in typed.stderr
        assert "Traceback" not in done.stdout + done.stderr + typed.stdout + typed.stderr
        assert project.remaining() == []
    finally:
        assert pulumi("stack", "rm", "--yes").returncode == 0
