"""Which ends of a job its manager takes for good, and after which it has the job resumed."""

from __future__ import annotations

import time

import pytest
from played_manager import Played, decisions, managed

from fabfile.backends.base import Backend, JobState
from fabfile.backends.submission import Submission
from fabfile.managed.bounds import Bounds
from fabfile.managed.watch import Seen
from node.job import endings

pytest_plugins = ("played_manager",)


def test_a_job_that_failed_by_itself_is_not_started_again(played: Played) -> None:
    manager = managed(played)
    why = "rank 1 on node2 ended with exit code 3: step 7: the loss is nan"
    played.script = {2: lambda: played.ends(JobState.FAILED, 1, why, by=endings.PROGRAM)}
    assert manager.run().state == JobState.FAILED
    assert decisions(manager) == [f"smoke-1 is not resumed, as it would end so again: {why}"]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (JobState.FAILED, "node1 does not answer: no word for 25 s"),
        (JobState.FAILED, "rank 2 on node3 is silent for 30 s, after step 8 (train)"),
        (JobState.FAILED, "rank 0 on node1 was killed by SIGKILL"),
        (JobState.CANCELLED, "its ranks were sent SIGTERM; stopped: step 8 is in the checkpoint"),
    ],
)
def test_a_job_that_nobody_and_not_itself_has_ended_is_resumed_though_no_machine_has_gone(
    state: JobState, reason: str, played: Played
) -> None:
    """As on a machine that had too much to do for half a minute: nothing is to be replaced."""
    manager = managed(played)
    played.script = {2: lambda: played.ends(state, 1, reason, by=endings.MACHINES), 9: lambda: played.ends()}
    assert manager.run().state == JobState.SUCCEEDED
    assert played.made == [] and decisions(manager) == ["smoke-1 resumed from its last checkpoint"]


def test_a_job_that_ends_so_again_and_again_is_resumed_as_often_as_its_user_allows(played: Played) -> None:
    manager = managed(played, bounds=Bounds(tries=2))

    again = manager.submission

    def submitted(there: Backend, job: str, nodes: int) -> Submission:
        attempts.append(played.job.attempt)
        played.script[played.looks + 2] = ended
        return again(there, job, nodes)

    def ended() -> None:
        played.change(attempt=attempts[-1] + 1)
        played.ends(JobState.FAILED, 1, "node1 does not answer: no word for 25 s", by=endings.MACHINES)

    attempts: list[int] = []
    manager.submission = submitted
    played.script = {2: lambda: played.ends(JobState.FAILED, 1, "silence", by=endings.MACHINES)}
    assert manager.run().state == JobState.FAILED and attempts == [1, 2]
    assert manager.session.reached == "2 replacements and restarts (--tries 2)"


def test_a_job_that_has_ended_is_not_resumed_beyond_a_bound_of_time(played: Played) -> None:
    """Nor are its nodes waited for, beyond that."""
    manager = managed(played, bounds=Bounds(max_hours=0.25))
    played.troubles.update(node2=Seen("node2", "booting"))
    played.ends(JobState.FAILED, 1, "node1 does not answer: no word for 25 s", by=endings.MACHINES)
    played.script = {4: lambda: setattr(manager.session.record, "began", time.time() - 1800)}
    assert manager.run().state == JobState.FAILED
    assert manager.session.reached == "it has run for 30m (--max-hours 0.25)" and decisions(manager) == []
