"""launch: everything that runs on the nodes of a cluster for a job, by its verb."""

from __future__ import annotations

import sys


def main() -> int:
    verb, argv = sys.argv[1], sys.argv[1:]
    # Imported at need: the wrapper of a rank has no use for the head's part, and is started sixteen times at once.
    if verb == "rank":
        from fabfile.on_node.job import rank

        return rank.main(argv[1:])
    if verb == "keep":
        from fabfile.on_node.job import keep

        return keep.main()
    if verb == "left":
        from fabfile.on_node.job import left

        return left.main(argv)
    return _on_head(verb, argv)


def _on_head(verb: str, argv: list[str]) -> int:
    from fabfile.on_node.job import create, jobs, log, supervise

    verbs = {
        "aftermath": supervise.aftermath,
        "create": create.main,
        "job": jobs.shown,
        "jobs": jobs.main,
        "logs": log.main,
        "supervise": supervise.main,
    }
    return verbs[verb](argv)
