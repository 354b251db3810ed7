"""`fab recover` and `fab audit`: remove, or list, what exists of a stack outside its state."""

from __future__ import annotations

from pathlib import Path

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.output import hint, next_command, say
from fabfile.question import ask, must_be_answerable
from fabfile.stacks import orphans, pulumi_cli, pulumi_lock, removal


@task
def recover(_c: Context, stack: str = "", yes: bool = False) -> None:
    """After a killed `up`: free the lock of a dead holder, repair the state, remove what no state knows."""
    backend = pulumi_lock.backend_folder() if pulumi_cli.has_pulumi() else None
    if backend:
        _repair_files(stack, backend, yes)
    facts = orphans.facts_of(stack)
    removal.show_recover(stack, facts)
    must_be_answerable(yes)
    if not yes:
        ask(f"free the lock of stack {stack} and remove what is not in its state?")
    if not pulumi_cli.has_pulumi():
        pulumi_cli.run("refresh", stack)
    elif pulumi_cli.exists(stack):
        pulumi_lock.free(stack, backend)
        pulumi_lock.end_language_hosts()
        pulumi_cli.run("refresh", stack, "--clear-pending-creates", *pulumi_cli.YES)
    of_state = orphans.known(stack, facts)
    swept = orphans.sweep(stack, of_state, facts)
    orphans.show(swept, facts)
    say(f"removed {len(swept)} resources that are in no state" if swept else "nothing was left over")
    # What a sweep leaves: data, what others own, and kinds that could not be listed.
    stays = orphans.find_settled(stack, of_state, facts)
    orphans.show(stays, facts)
    if any(each["holds"] for each in stays):
        say(hint("data is never swept; remove it: fab destroy --delete-data"))
    if stays:
        raise Exit(removal.remains(stack, stays, "the list says why"), code=1)
    say(next_command("fab up, or fab destroy"))


def _repair_files(stack: str, backend: Path, yes: bool) -> None:
    """Repair what a killed `pulumi` left half-written, after a question of its own: until then the state cannot be
    read, and what else would change not be listed."""
    found = pulumi_lock.half_written(stack, backend)
    if found:
        pulumi_lock.say_half_written(found)
        must_be_answerable(yes)
        if not yes:
            which = "this file" if len(found) == 1 else "these files"
            ask(f"repair {which}? Then the state of stack {stack} can be read")
        pulumi_lock.repair_files(stack, backend)
    pulumi_lock.must_be_readable(stack, backend)


@task
def audit(_c: Context, stack: str = "") -> None:
    """List everything of the stack that exists outside its state."""
    facts = orphans.facts_of(stack)
    found = orphans.find(stack, orphans.known(stack, facts), facts)
    if found:
        orphans.show(found, facts)
        outside = ("is outside its state", "are outside its state")
        raise Exit(removal.remains(stack, found, "remove them: fab recover", outside), code=1)
    say(f"audit: nothing of stack {stack} exists outside its state")
