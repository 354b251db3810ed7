"""The operator's verbs. `fab --list` is their table of contents; one file per noun."""

from fabfile.check import check
from fabfile.demo import demo
from fabfile.images import images, prune
from fabfile.shell import run, ssh, ssh_config
from fabfile.stack import audit, destroy, preview, recover, refresh, up
from fabfile.status import status
from fabfile.wait import wait

__all__ = [
    "audit",
    "check",
    "demo",
    "destroy",
    "images",
    "preview",
    "prune",
    "recover",
    "refresh",
    "run",
    "ssh",
    "ssh_config",
    "status",
    "up",
    "wait",
]
