"""The entry points: `fab` in the checkout, `trainyard` from anywhere, `python -m fabfile`. They run one verb.

All three call `run`. Fabric's own `fab` has parsed some arguments before it loads this collection; that is ignored.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
import textwrap
import tomllib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import fabric.main  # type: ignore[import-untyped]
from invoke.config import Config
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task

from fabfile import output
from fabfile.command_line import CommandLineError, Verb, meant
from fabfile.output import say
from fabfile.remote.known_hosts import SshError
from fabfile.stacks.pulumi_cli import ROOT, default_stack
from fabfile.verbs import FILES

FAILED, INTERRUPTED = 1, 130
_HELP = ("-h", "--help")
BEGIN = """\
Training clusters as code. On this machine, from nothing to a trained model and back:

    fab up               three machines, each with its own systemd and sshd
    fab wait             follow their boot until all are ready
    fab check            is everything as training needs it?
    fab prepare demo     text into tokens, on every node
    fab train demo       follows the job; Ctrl-C lets it go on
    fab logs demo-1 -f   comes back to it
    fab destroy          nothing stays

All verbs: fab --list      One verb: fab VERB --help      The whole story in one go: fab demo"""


class Program(fabric.main.Fab):  # type: ignore[misc]
    """Fabric's program after it has found this collection: it parses nothing and runs no task; `run` does both."""

    def parse_tasks(self) -> None:
        """Nothing: `run` looks the verbs up."""

    def parse_cleanup(self) -> None:
        """Nothing: `run` handles --help, --list and --version."""

    def update_config(self) -> None:
        """Nothing: the verbs read no configuration of Invoke's."""

    def execute(self) -> None:
        """Run the command line, and exit with its code."""
        sys.exit(run(self.argv[1:]))


def take_over() -> None:
    """Called when the collection is loaded: if Fabric's own `fab` loads it, our program takes over."""
    if hasattr(fabric.main.program, "core"):  # it has read its own flags: it is running
        fabric.main.program.__class__ = Program


def main() -> None:
    """The commands `trainyard` and `python -m fabfile`."""
    _here()
    if not (ROOT / "Pulumi.yaml").is_file():
        why = f"{ROOT} is no checkout of trainyard: clone it, and there: pip install --editable ."
        sys.exit(_ended(CommandLineError(why)))
    sys.exit(run(sys.argv[1:]))


def fab() -> None:
    """The command `fab`: our verbs, unless the nearest fabfile is another one, which Fabric then runs."""
    here = _here()
    for folder in (here, *here.parents):
        if (folder / "fabfile.py").is_file() or (folder / "fabfile" / "__init__.py").is_file():
            if folder.resolve() == ROOT.resolve():
                break
            # It may be another checkout of trainyard, which must not import this one's modules.
            for name in [name for name in sys.modules if name.partition(".")[0] in ("fabfile", "infra", "node")]:
                del sys.modules[name]
            sys.exit(fabric.main.program.run())
    main()


def _here() -> Path:
    """The folder that the command is called in; ends the command if there is none any more."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        sys.exit(_ended(CommandLineError("the folder that you are in has been removed: go to another one")))


class Verbs(Mapping[str, Verb]):
    """Every verb by its name. A verb's file is loaded when the verb is asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, Verb] = {}

    def __getitem__(self, name: str) -> Verb:
        if name not in self._loaded:
            module = importlib.import_module(f"fabfile.verbs.{FILES[name]}")
            tasks = [each for each in vars(module).values() if isinstance(each, Task)]
            self._loaded[name] = Verb(name, next(task for task in tasks if task.name == name))
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(FILES)

    def __len__(self) -> int:
        return len(FILES)


def verbs() -> Mapping[str, Verb]:
    """Every verb by its name."""
    return Verbs()


def run(words: Sequence[str]) -> int:
    """Run the command line; returns the exit code. An error prints one line, never a traceback."""
    output.open_streams()
    try:
        _run(list(words), verbs())
    except Exit as end:
        return _ended(end)
    except KeyboardInterrupt:
        return _ended(Exit("interrupted", code=INTERRUPTED))
    except (SshError, EOFError) as error:
        return _ended(Exit(str(error) or "the input ended", code=FAILED))
    except Exception as error:  # noqa: BLE001 - the last resort
        return _ended(Exit(_bug(error), code=FAILED))
    return 0


def _run(words: list[str], known: Mapping[str, Verb]) -> None:
    for word in words:
        if re.search("[\ud800-\udfff]", word):
            raise CommandLineError(f"not UTF-8: {os.fsencode(word)!r}")
    own = words[: words.index("--")] if "--" in words else words
    first = own[0] if own else ""
    if not own:
        say(BEGIN)
    elif first in ("help", *_HELP) or any(word in _HELP for word in own):
        _help([word for word in own if word not in ("help", *_HELP)], known)
    elif first in ("-l", "--list"):
        say(listing(known))
    elif first in ("-V", "--version"):
        say(versions())
    else:
        verb = _verb(first, known)
        given = verb.read(words[1:], known)
        if given.get("stack") and given.get("inventory"):
            raise CommandLineError(f"fab {first}: --stack and --inventory: each names a cluster: leave one of them out")
        _remember_target(given, known)
        if verb.takes("stack"):
            given["stack"] = given.get("stack") or default_stack()
        # Not Invoke's own settings, which it reads from the home directory: the verbs use none of them.
        verb.body(Context(Config(lazy=True)), **given)


def _help(words: list[str], known: Mapping[str, Verb]) -> None:
    """Print the help of the first verb named, or of all."""
    if words:
        say(_verb(words[0], known).help())
        return
    say(f"{BEGIN}\n\n{listing(known)}\n\nfab --version: the versions of trainyard and what it is made of")


def _verb(word: str, known: Mapping[str, Verb]) -> Verb:
    if word in known:
        return known[word]
    if not word.startswith("-"):
        raise CommandLineError(f"fab: there is no verb {word!r}{meant(word, known)} (all of them: fab --list)")
    flag = word.partition("=")[0]
    if any(flag in verb.options for verb in known.values()):
        raise CommandLineError(f"fab: {flag} must come after the verb: fab VERB {flag} ...")
    fabrics = fabric.main.make_program().initial_context.flags
    if flag in fabrics or (not flag.startswith("--") and flag[:2] in fabrics):
        raise CommandLineError(f"fab: {flag} is an option of Fabric that no verb here supports (all verbs: fab --list)")
    raise CommandLineError(f"fab: there is no option {flag}; options come after the verb (see fab VERB --help)")


def _remember_target(given: Mapping[str, object], known: Mapping[str, Verb]) -> None:
    """Store the command's cluster, for the hints that it prints."""
    name = next((name for name in ("inventory", "stack") if given.get(name)), "")
    flag = f" --{name} {shlex.quote(str(given[name]))}" if name else ""
    output.remember_target(flag, lambda verb: verb in known and known[verb].takes(name))


def listing(known: Mapping[str, Verb]) -> str:
    """The verbs with their summaries."""
    column = max(map(len, known)) + 4
    wrap = textwrap.TextWrapper(max(60, output.width()), subsequent_indent=" " * column)
    return "\n".join(wrap.fill(f"  {verb.name}".ljust(column) + verb.summary) for verb in known.values())


def versions() -> str:
    """The versions of trainyard and its main dependencies."""
    own = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    parts = [f"{name} {metadata.version(name)}" for name in ("fabric", "invoke", "paramiko", "pulumi")]
    return f"trainyard {own} ({', '.join(parts)}, Python {sys.version.partition(' ')[0]})"


def _ended(end: Exit) -> int:
    """Print the message of an Exit, if it has one; returns its exit code."""
    code: int = end.code or 0
    try:
        if end.message:
            say(output.hint(str(end.message)), file=sys.stderr)
    except Exit:
        pass  # the reader has gone
    return code


def _bug(error: Exception) -> str:
    if os.environ.get("TRAINYARD_DEBUG"):
        return "".join(traceback.format_exception(error)).rstrip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(ROOT))]
    place = f" at {Path(frames[-1].filename).relative_to(ROOT)}:{frames[-1].lineno}" if frames else ""
    line = " ".join(str(error).split()) or "without a message"
    return f"bug in trainyard{place}: {type(error).__name__}: {line} (TRAINYARD_DEBUG=1 shows the traceback)"
