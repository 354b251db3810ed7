"""The container images of the local nodes, as archives that each node imports: there is no registry.

/var/lib/trainyard/kubernetes/images-<key>/
    every/*.tar   for every node: `pause`, a pod's first process, and the jobs' own
    head/*.tar    the training operator's, which runs on the head
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from infra import training_operator
from infra.clouds.local import paths
from infra.clouds.local.kubernetes import oci, programs
from infra.clouds.local.kubernetes.oci import File, Folder, Link

PAUSE = "trainyard.local/pause:1"
OPERATOR = f"trainyard.local/training-operator:{training_operator.VERSION}"
JOB = "trainyard.local/job:1"
"""The jobs' own: nothing but the names of the folders that their pods have from the machine."""
SOFTWARE = ("/usr", "/opt/trainyard", "/etc/trainyard", "/var/lib/trainyard")
"""These folders."""
_OPERATOR_USER = "65532"
_NOBODY = "65535"
_WAITER = f"""- name: wait
  image: {PAUSE}
  imagePullPolicy: IfNotPresent
  command: ["/pause", "no"]
"""
"""In place of the operator's init container, which asks the cluster's DNS for a job's first pod: our pods find each
other by the job's folder."""


def folder() -> Path:
    """The folder of the images, whether it is there or not."""
    made_by = [path.read_bytes() for path in (Path(__file__), Path(oci.__file__))]
    key = hashlib.sha256(b"\0".join([programs.key().encode(), *made_by])).hexdigest()[:16]
    return paths.kubernetes() / f"images-{key}"


def make() -> None:
    """Write the images, from the programs, if they are not there; it takes a second."""
    target = folder()
    if target.exists():
        return
    scratch = target.with_name(f"{target.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)  # of a killed `up`
    for part in ("every", "head"):
        (scratch / part).mkdir(parents=True)
    pause: oci.Layer = {"pause": File(programs.folder() / "pause", 0o755)}
    oci.write(scratch / "every/pause.tar", PAUSE, [pause], entrypoint=["/pause"], user=_NOBODY)
    oci.write(scratch / "every/job.tar", JOB, [_of_job()], environment=["PATH=/usr/local/bin:/usr/bin:/bin"])
    operator: oci.Layer = {
        "manager": File(programs.folder() / "training-operator.v1", 0o755),
        "etc/config/initContainer.yaml": File(_WAITER.encode()),
        "tmp": Folder(0o1777),
    }
    oci.write(scratch / "head/operator.tar", OPERATOR, [operator], entrypoint=["/manager"], user=_OPERATOR_USER)
    os.sync()  # the folder is trusted later, so it must survive a crash of the host
    scratch.rename(target)


def _of_job() -> oci.Layer:
    users = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    return {
        **{name: Link(f"usr/{name}") for name in ("bin", "sbin", "lib", "lib64")},
        **{name.lstrip("/"): Folder() for name in (*SOFTWARE, "/root", "/run")},
        **{"tmp": Folder(0o1777), "var/tmp": Folder(0o1777)},
        **{"etc/passwd": File(users.encode()), "etc/group": File(b"root:x:0:\nnogroup:x:65534:\n")},
        # Debian's Python has a link to it among its modules, in the /usr of the machine.
        **{f"etc/python3.{minor}/sitecustomize.py": File(b"") for minor in range(11, 16)},
    }
