"""Jobs: started, watched, stopped, and what they leave; one file per verb."""

from fabfile.jobs.fetch import fetch
from fabfile.jobs.listing import jobs
from fabfile.jobs.logs import logs
from fabfile.jobs.sample import sample
from fabfile.jobs.stop import stop
from fabfile.jobs.train import train

__all__ = ["fetch", "jobs", "logs", "sample", "stop", "train"]
