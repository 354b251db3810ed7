"""The script that makes a ParallelCluster machine a Trainyard node: bootstrap/ with its settings, in one file.

ParallelCluster runs it as root at the end of each machine's first boot, with the node's role as its argument. Slurm,
the GPUs' driver, EFA and the shared folders are there by then.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import replace

from infra import user_data
from infra.clouds.aws import machine_types
from infra.config.settings import Settings

USER = "ubuntu"
"""ParallelCluster's user on Ubuntu; its home is on the head's disk, and all nodes see it."""
ENV = "/etc/trainyard.env"
_ROLES = ("head", "worker")
LEFT_OUT = (f"{user_data.ON_NODE}/steps/image/52-nccl-tests",)
"""Steps that no machine here needs, and that each of the queue would run at every start: mpirun starts nccl-tests, and
with Slurm `fab check` measures NCCL by an all-reduce of torch's own, which srun starts (node/probes/gpu_ranks.py)."""
_COMMANDS = "salloc sbatch scancel scontrol sinfo squeue srun"
"""Of Slurm, which a login shell finds (/etc/profile.d/slurm.sh of ParallelCluster's cookbook), but neither a command
over SSH, nor one by sudo, nor a rank's environment: these have /usr/local/bin."""
_SCRIPT = """\
#!/usr/bin/env bash
# Makes this ParallelCluster machine a Trainyard node. $1: its role, head or worker.
set -euo pipefail
export HOME=/root
prefix=${{TRAINYARD_PREFIX:-}} # as in bootstrap/lib.sh: for tests
env=$prefix{env}
mkdir -p "$prefix/etc" "$prefix/usr/local/bin"
sed '1,/^__FILES__$/d' "$0" | base64 -d | tar -xz --no-same-owner -C "$prefix/"
cp "$env.$1" "$env"
# The host name is Slurm's: the bootstrap must leave it.
printf 'TRAINYARD_NODE=%s\nTRAINYARD_USER={user}\n' "$(hostname -s)" >>"$env"
if [ "$1" = head ]; then
    install -d -o {user} -g {user} "$prefix{shared}/runs"
fi
for name in {commands}; do
    [ -x "$prefix/opt/slurm/bin/$name" ] || {{ echo "this machine has no /opt/slurm/bin/$name" >&2; exit 1; }}
    ln -sf "$prefix/opt/slurm/bin/$name" "$prefix/usr/local/bin/$name"
done
exec "$prefix{bootstrap}/bootstrap.sh"
__FILES__
"""


def render(settings: Settings, machine: machine_types.InstanceType, shared_dir: str) -> str:
    """The script. `machine`: the queue's; the head, which has no GPU, gets the software without CUDA."""
    files: dict[str, tuple[str, int]] = {}
    for role in _ROLES:
        facts = {} if role == "head" else machine_types.for_nodes(machine)
        for path, content, mode in _files(settings, role, facts):
            files[f"{ENV}.{role}" if path == ENV else path] = (content, mode)
    text = _SCRIPT.format(env=ENV, user=USER, shared=shared_dir, commands=_COMMANDS, bootstrap=user_data.ON_NODE)
    return text + _packed(files)


def digest(script: str) -> str:
    """Its name in the bucket: another content is another object, which running nodes do not see."""
    return hashlib.sha256(script.encode()).hexdigest()[:16]


def _files(settings: Settings, role: str, facts: Mapping[str, object]) -> list[tuple[str, str, int]]:
    """(path, content, mode): what cloud-init would write on a bare machine, without the node's name. `facts`: those of
    the machine's type, for the bootstrap's steps."""
    profile = "native" if role == "head" else settings.profile
    # Slurm ends idle nodes of the queue, and the head does not notice their jobs: no idle limit of our own. EC2's own
    # metrics take the place of the bootstrap's.
    cloud = replace(settings.cloud, monitoring=False)
    own = replace(settings, profile=profile, idle_minutes=0, cloud=cloud)
    found = []
    for file in user_data.files_for_node(own, user_data.image_key(own), "", role, facts):
        if file["path"] in LEFT_OUT:
            continue
        content = str(file["content"])
        if file["path"] == ENV:
            content = "".join(line for line in content.splitlines(True) if not line.startswith("TRAINYARD_NODE="))
        found.append((str(file["path"]), content, int(file.get("permissions", "0644"), 8)))
    return found


def _packed(files: dict[str, tuple[str, int]]) -> str:
    """A tar with gzip in base64, the same for the same content."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, (text, mode) in sorted(files.items()):
            content = text.encode()
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return base64.encodebytes(gzip.compress(stream.getvalue(), mtime=0)).decode()
