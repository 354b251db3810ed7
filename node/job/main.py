"""launch: everything that runs on the nodes of a cluster for a job, by its verb."""

from __future__ import annotations

import sys


def main() -> int:
    verb, argv = sys.argv[1], sys.argv[1:]
    # Imported at need: the wrapper of a rank has no use for the head's part, and is started sixteen times at once.
    if verb == "rank":
        from node.job import rank_wrapper

        return rank_wrapper.main(argv[1:])
    if verb == "keep":
        from node.job import keeper

        return keeper.main()
    if verb == "left":
        from node.job import cleanup

        return cleanup.main(argv)
    return _on_head(verb, argv)


def _on_head(verb: str, argv: list[str]) -> int:
    from node.job import job_table, log, submit, supervisor

    verbs = {
        "aftermath": supervisor.aftermath,
        "create": submit.main,
        "job": job_table.shown,
        "jobs": job_table.main,
        "logs": log.main,
        "supervise": supervisor.main,
    }
    return verbs[verb](argv)
