"""The operator's verbs. `fab --list` is their table of contents; one file per noun."""

from fabfile.check import check
from fabfile.config import config
from fabfile.cost import cost
from fabfile.data import data
from fabfile.demo import demo
from fabfile.images import images, prune
from fabfile.jobs import fetch, jobs, logs, sample, stop, train
from fabfile.own_machines import bootstrap
from fabfile.prepare import prepare
from fabfile.program import take_over
from fabfile.report import report
from fabfile.shell import run, ssh, ssh_config
from fabfile.stack import audit, destroy, preview, recover, refresh, up
from fabfile.status import status
from fabfile.wait import wait

__all__ = [
    "audit",
    "bootstrap",
    "check",
    "config",
    "cost",
    "data",
    "demo",
    "destroy",
    "fetch",
    "images",
    "jobs",
    "logs",
    "prepare",
    "preview",
    "prune",
    "recover",
    "refresh",
    "report",
    "run",
    "sample",
    "ssh",
    "ssh_config",
    "status",
    "stop",
    "train",
    "up",
    "wait",
]

take_over()
