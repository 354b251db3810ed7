"""The operator's verbs; `fab --list` lists them, and fabfile/verbs has their code."""

from fabfile.program import take_over
from fabfile.verbs.bootstrap import bootstrap
from fabfile.verbs.check import check
from fabfile.verbs.config import config
from fabfile.verbs.cost import cost
from fabfile.verbs.data import data
from fabfile.verbs.demo import demo
from fabfile.verbs.destroy import destroy
from fabfile.verbs.fetch import fetch
from fabfile.verbs.images import images, prune
from fabfile.verbs.jobs import jobs
from fabfile.verbs.logs import logs
from fabfile.verbs.prepare import prepare
from fabfile.verbs.recover import audit, recover
from fabfile.verbs.report import report
from fabfile.verbs.sample import sample
from fabfile.verbs.shell import run, ssh, ssh_config
from fabfile.verbs.status import status
from fabfile.verbs.stop import stop
from fabfile.verbs.train import train
from fabfile.verbs.up import preview, refresh, up
from fabfile.verbs.wait import wait

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
