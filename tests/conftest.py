"""What all tests share: good settings to spoil, and how long an example may take."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import hypothesis
import keyboard_signals
import pytest
from sample_inputs import public_key

from fabfile import output
from fabfile.stacks import pulumi_cli
from infra.config import stack_file

pytest_plugins = ["processor_budget"]

# Ranks of tests stand for machines without a GPU, and would all take this machine's first one. training/test_gpu.py
# shows it to its own.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Models of tests are so small that torch's threads would mostly spin while they wait for each other: forty times the
# processor time where the machine is busy.
os.environ["OMP_NUM_THREADS"] = "1"

# Before any test starts a process.
keyboard_signals.restore()

# No deadline for one example: a test machine may be busy, and times are measured in bench/. Each run draws other
# examples, so fifty of them, half of what is usual, find as much in two runs.
hypothesis.settings.register_profile("trainyard", deadline=None, max_examples=50)
hypothesis.settings.load_profile("trainyard")

# Python looks for cycles of garbage after each 700 new objects, in old ones as well. With the clouds' SDKs loaded that
# is a good part of a Pulumi program's time, and a run of the tests ends before garbage is a matter of memory.
gc.set_threshold(50_000, 20, 100)


LONGEST = ("test_job_kills.py", "test_macos.py", "test_main_road.py")
"""Of `make soak`, `make acceptance` and `make test`; they begin first."""
MAIN_ROAD = "test_main_road.py"
"""Of acceptance/ what `make test` runs."""
SPREAD = 0.8
"""Of all other files, the share between which those of acceptance/ stand."""


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_itemcollected(item: pytest.Item) -> None:
    """All of acceptance/ is `make acceptance`'s, but for the main road."""
    if item.path.parent.name == "acceptance" and item.path.name != MAIN_ROAD:
        item.add_marker(pytest.mark.acceptance)


@pytest.hookimpl(trylast=True)  # after -m has chosen
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files into the order in which the workers take them. Those of acceptance/ mostly wait for machines, the
    others compute: so they stand among each other, and the processors have work all the time. The longest come first,
    and none of acceptance/ at the end: no worker is to end alone with a long one."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in sorted(items, key=lambda item: item.path.name not in LONGEST):
        files.setdefault(item.path, []).append(item)
    machines = [path for path in files if path.parent.name == "acceptance"]
    others = [path for path in files if path.parent.name != "acceptance"]
    step = SPREAD * len(others) / max(1, len(machines))
    places = {path: number * step for number, path in enumerate(machines)}
    places |= {path: float(number) for number, path in enumerate(others)}
    items[:] = [item for path in sorted(places, key=lambda path: places[path]) for item in files[path]]


@pytest.fixture(autouse=True)
def a_new_command() -> None:
    """A verb reads a stack's state once in its process, and its hints name the cluster of the command line; each test
    stands for processes of its own."""
    pulumi_cli.read_state_again()
    output.remember_target("", bool)


@pytest.fixture(scope="session")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A public key with its private half beside it."""
    directory = tmp_path_factory.mktemp("ssh")
    (directory / "id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nnot for you\n")
    (directory / "id_ed25519.pub").write_text(public_key() + "\n")
    return directory / "id_ed25519.pub"


@pytest.fixture(scope="session")
def good(key_file: Path) -> dict[str, str]:
    """Every key as the local stack has it, with a public key that is there."""
    return {**stack_file.read("local"), "publicKey": str(key_file)}
