"""The folder that a stack's nodes with Slurm share: what is in it, whose it is, and that it goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.clouds.local import firewall, ids, network, orphans, paths, rootfs
from infra.clouds.local.nspawn import NspawnMachine
from infra.clouds.local.slurm import configuration, folder, node
from infra.clouds.local.slurm.folder import SlurmProvider
from infra.errors import OperationError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="giving files to others needs root")
PROPS = {"stack": "lab", folder.CONFIGURATION: "NodeName=node1\n", **folder.SCRIPTS}
PASSWD = "root:x:0:0::/root:/bin/bash\nmunge:x:104:109::/:/x\nslurm:x:64030:64031::/:/x\ntrainyard:x:1000:1000::/:/x\n"


@pytest.fixture
def made(home: Path) -> Path:
    SlurmProvider().create(PROPS)
    return folder.path("lab")


@pytest.fixture
def machine(home: Path) -> NspawnMachine:
    """A machine whose root has Slurm's users, as the image has them."""
    found = NspawnMachine("lab", "node1", paths.node("lab", "node1"))
    (found.root / "etc").mkdir(parents=True)
    (found.root / "etc/passwd").write_text(PASSWD)
    return found


def mode(path: Path) -> tuple[int, int, int]:
    """Mode, user and group as a node sees them."""
    status = path.stat()
    return status.st_mode & 0o7777, status.st_uid - ids.FIRST, status.st_gid - ids.FIRST


def test_all_is_there_before_the_first_node_boots(made: Path) -> None:
    assert (made / "etc/slurm.conf").read_text() == "NodeName=node1\n"
    assert mode(made / "etc/slurm.conf") == (0o644, 0, 0)
    for script in (configuration.EPILOG, configuration.STEP):
        assert mode(made / "etc" / Path(script).name) == (0o755, 0, 0)
    assert mode(made / "fsx") == (0o1777, 0, 0), "every user of a node writes there, and none removes another's"
    key = made / "munge.key"
    assert (key.stat().st_mode & 0o777, key.stat().st_uid) == (0o600, 0), "no node reads it there"
    assert 32 <= len(key.read_text()) <= 1024


def test_a_changed_configuration_keeps_key_and_files(made: Path) -> None:
    (made / "fsx/run").write_text("42")
    os.chown(made / "state", ids.FIRST + 64030, ids.FIRST + 64030)  # Slurm's, since the head has booted
    key = (made / "munge.key").read_text()
    SlurmProvider().update("lab-slurm", PROPS, {**PROPS, folder.CONFIGURATION: "NodeName=node[1-2]\n"})
    SlurmProvider().create(PROPS)  # as after a killed `up`
    assert (made / "fsx/run").read_text() == "42" and (made / "munge.key").read_text() == key
    assert mode(made / "state")[1:] == (64030, 64030), "slurmctld ends if it is not its own"


def test_two_stacks_have_two_keys(made: Path) -> None:
    SlurmProvider().create({**PROPS, "stack": "other"})
    assert (made / "munge.key").read_text() != (folder.path("other") / "munge.key").read_text()


def test_delete_leaves_nothing_and_read_sees_it(made: Path) -> None:
    assert SlurmProvider().read("lab-slurm", PROPS).id == "lab-slurm"
    (made / "fsx/link").symlink_to("/etc")
    SlurmProvider().delete("lab-slurm", PROPS)
    assert not paths.stack("lab").exists() and Path("/etc/passwd").exists()
    assert SlurmProvider().read("lab-slurm", PROPS).id == ""


def test_a_node_gets_the_key_and_the_folders_and_the_head_the_queue(made: Path, machine: NspawnMachine) -> None:
    options = node.prepare(machine)
    assert rootfs.read(machine.root, node.KEY) == (made / "munge.key").read_text()
    assert mode(machine.root / node.KEY) == (0o400, 104, 109)
    assert options == [
        f"--bind-ro={made}/etc:/etc/slurm",
        f"--bind={made}/fsx:/fsx",
        f"--bind={made}/state:{configuration.STATE}",
    ]
    assert mode(made / "state")[1:] == (64030, 64031)
    worker = NspawnMachine("lab", "node2", machine.directory)
    assert node.prepare(worker) == options[:2]


def test_an_image_without_slurm_is_named_as_the_cause(made: Path, machine: NspawnMachine) -> None:
    (machine.root / "etc/passwd").write_text("root:x:0:0::/root:/bin/bash\n")
    with pytest.raises(OperationError, match="the image lacks the users munge and slurm"):
        node.prepare(machine)


def test_recover_finds_a_folder_that_is_nobody_s(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "links", lambda: [])
    monkeypatch.setattr(firewall, "is_open", lambda link: False)
    assert [(live.kind, live.owner) for live in orphans.find("lab")] == [("directory", "slurm")]
    assert orphans.sweep("lab", known=["slurm"]) == [] and made.exists()
    assert [live.what for live in orphans.sweep("lab", known=[])] == [str(made)]
    assert not paths.stack("lab").exists()
