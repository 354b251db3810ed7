"""Kubernetes' programs for the local nodes, fetched or built once, and kept by version.

/var/lib/trainyard/kubernetes/<key>/
    kubelet, kubectl, ...    Kubernetes' programs, as a node calls them
    kubernetes               where they could not be fetched: all in one, 132 MB, which those names are links to
    coredns                  the cluster's name service, 52 MB
    pause                    a pod's first process
    training-operator.v1     Kubeflow's training operator, 55 MB
    pytorchjobs.yaml         the definition of PyTorchJob, from the operator's module
    programs.json            written last: without it the folder is not used

Kubernetes publishes its programs (`published.py`). Where they are out of reach, they are built from their Go modules,
which are to be had wherever packages are. So are always CoreDNS, and the training operator, which is published only as
an image, in a registry that the nodes, which have no route to the outside, could not ask. go.sum pins every module by
its hash, and Go holds the operator's against its public list of hashes (https://sum.golang.org).
Measured on 2 idle cores, all built: some 12 minutes, 2.2 GB of memory, 3 GB of disk, of which 240 MB stay.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from infra import go_toolchain, training_operator
from infra.clouds.local import paths, system_command
from infra.clouds.local.kubernetes import published
from infra.errors import OperationError, UsageError

VERSION = "1.34.4"
"""Kubernetes'. Debian 12's containerd is 1.6, and 1.35 no longer starts where control groups are of version 1."""
NAMES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
"""Of Kubernetes' programs."""
OPERATOR = f"github.com/kubeflow/training-operator/cmd/training-operator.v1@v{training_operator.VERSION}"
DEFINITION = "pytorchjobs.yaml"
SOURCES = Path(__file__).parent / "go"
NEEDED_GB = 4.0
TIMEOUT = 3600.0
"""Seconds for the build."""
_PARTS = dict(zip(("gitMajor", "gitMinor"), VERSION.split("."), strict=False))
_SETTINGS = " ".join(
    f"-X k8s.io/component-base/version.{name}={value}"
    for name, value in {"gitVersion": f"v{VERSION}", **_PARTS}.items()
)


def key() -> str:
    """The name of this version's folder: a hash of all that goes into it."""
    sources = [path.read_bytes() for path in sorted(SOURCES.rglob("*")) if path.is_file()]
    words = "\0".join([platform.machine(), _SETTINGS, OPERATOR])
    return hashlib.sha256(b"\0".join([words.encode(), *sources])).hexdigest()[:16]


def folder() -> Path:
    """This version's folder, whether it is there or not."""
    return paths.kubernetes() / key()


def are_there() -> bool:
    """Whether they have been built."""
    return (folder() / "programs.json").exists()


def definition() -> str:
    """The definition of PyTorchJob (YAML)."""
    return (folder() / DEFINITION).read_text()


def check() -> None:
    """Raise UsageError if they are to be built and this machine lacks what that needs. Changes nothing."""
    if are_there():
        return
    purpose = f"scheduler = 'kubernetes' builds programs of Kubernetes {VERSION} once"
    go_toolchain.check(purpose, "pip install -e '.[local-kubernetes]'")
    home = paths.kubernetes()
    there = next(parent for parent in (home, *home.parents) if parent.exists())
    free = shutil.disk_usage(there).free / 2**30
    if free < NEEDED_GB:
        raise UsageError(f"{there}: {free:.1f} GiB free, and the build of Kubernetes needs {NEEDED_GB:.0f}")


def build(joins: Sequence[Path], say: Callable[[str], None], check_wanted: Callable[[], None]) -> None:
    """Build what is not there yet. `joins`: the control groups that the compilers run in; `check_wanted` is called
    meanwhile, and raises when they are no longer wanted. Nothing is left of a build that does not succeed."""
    target, began = folder(), time.monotonic()
    if are_there():
        return
    checked = _reporting(say, check_wanted, began)
    scratch = paths.kubernetes() / f"{key()}.new"
    _remove(scratch)  # a killed build may have left one
    paths.close()
    try:
        (scratch / "work").mkdir(parents=True)
        is_fetched = _fetch(scratch, say, check_wanted)
        what, minutes = ("CoreDNS and the training operator", 4) if is_fetched else (f"kubernetes {VERSION}", 12)
        say(f"{what}: building from Go modules, once on this machine; some {minutes} minutes of two cores")
        _compile(scratch, ["./pause"] if is_fetched else ["./kubernetes", "./pause"], joins, checked)
        for name in () if is_fetched else NAMES:
            (scratch / name).symlink_to("kubernetes")
        _keep_definition(scratch)
        _remove(scratch / "work")
        record = {"kubernetes": VERSION, "operator": training_operator.VERSION}
        (scratch / "programs.json").write_text(json.dumps(record) + "\n")
        _remove(target)
        os.sync()  # the folder is trusted later, so it must survive a crash of the host
        scratch.rename(target)
    finally:
        _remove(scratch)
    say(f"kubernetes {VERSION}: ready after {time.monotonic() - began:.0f} s")


def _reporting(say: Callable[[str], None], check: Callable[[], None], began: float) -> Callable[[], None]:
    """`check`, which also tells now and then that the build goes on."""
    report = go_toolchain.reporter(say, f"kubernetes {VERSION}", began)

    def checked() -> None:
        check()
        report()

    return checked


def _fetch(scratch: Path, say: Callable[[str], None], check: Callable[[], None]) -> bool:
    """Put Kubernetes' programs there as they are published; false: they are out of reach, which is said."""
    say(f"kubernetes {VERSION}: asking {published.URL} for its programs")
    try:
        published.fetch(VERSION, NAMES, scratch, say, check)
    except published.OutOfReach as error:
        say(f"kubernetes {VERSION}: {error}; so it is built here")
        return False
    return True


def _compile(scratch: Path, packages: Sequence[str], joins: Sequence[Path], check: Callable[[], None]) -> None:
    work = scratch / "work"
    sources = work / "go"
    shutil.copytree(SOURCES, sources)
    build, smaller = ["build", "-mod=readonly", "-o", f"{scratch}/"], "-ldflags=-s -w"
    for argv in (
        ["go", "-C", str(sources), *build, f"{smaller} {_SETTINGS}", *packages],
        ["go", "-C", str(sources / "coredns"), *build, smaller, "."],
        ["go", "install", smaller, OPERATOR],
    ):
        command = ["env", *go_toolchain.settings(work, scratch), *argv]
        try:
            system_command.run_watched(command, joins, work, timeout=TIMEOUT, check=check)
        except system_command.SystemCommandError as error:
            raise OperationError(f"Kubernetes {VERSION} cannot be built: {error}") from None


def _keep_definition(scratch: Path) -> None:
    text = (scratch / "work/path/pkg/mod" / training_operator.DEFINITION_FILE).read_bytes()
    if (found := hashlib.sha256(text).hexdigest()) != training_operator.DEFINITION_SHA256:
        raise OperationError(f"{training_operator.DEFINITION_FILE}: has sha256 {found}")
    (scratch / DEFINITION).write_bytes(text)


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(path)
