"""Parse a verb's command line, as its function's signature declares it: options, short flags, help, errors.

Invoke's own parser is not used: it takes `--help` after `fab run` for the command to run, and accepts unknown flags
(`-R`). argparse reads the options of the one verb that is named; the rest are its arguments.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from invoke.exceptions import Exit
from invoke.tasks import Task

USAGE = 2
SHORT = {
    name: f"-{name[0]}" for name in ("stack", "inventory", "nodes", "follow", "yes", "detach", "json", "out", "wide")
} | {"to": "-o"}
"""Short flags by option: the same with every verb; -o is where something is written to, a file or a folder."""
HELP = {
    "stack": "name of the stack (default: $TRAINYARD_STACK, or local)",
    "inventory": "an inventory file instead of a stack",
    "job": "the job: its id, its number, or latest",
    "yes": "do not ask",
    "json": "print JSON, for programs",
}
"""Help of the parameters that several verbs have, where a verb does not have its own."""
VALUES = {
    **{"stack": "NAME", "inventory": "FILE", "set": "KEY=VALUE", "resume": "JOB", "with": "STACK2", "exchange": "URL"},
    **{"out": "FILE", "to": "FOLDER", "workdir": "FOLDER", "requirements": "FILE", "file": "FILE", "ranks": "FILE"},
    **{"env": "NAME=VALUE", "secret": "NAME", "time-limit": "TIME", "since": "TIME", "zones": "A,B", "types": "A,B"},
    **{"per": "slot|node|head", "text-key": "KEY", "invalid": "stop|skip|replace", "from": "FOLDER"},
}
"""What stands for an option's value in its help, where that is not the option's name: --stack NAME."""
_OVERRIDES = "set_"
"""A verb with this parameter takes `section.key=value` at any position, with or without `--set` before it."""
_OVERRIDE = re.compile(r"[a-z_]+\.[a-z0-9_]+=.*", re.DOTALL)


@dataclass(frozen=True)
class AtLeast:
    """For a parameter's annotation: `tokens: Annotated[int, AtLeast(1)]` refuses `--tokens 0`."""

    lowest: float


@dataclass(frozen=True)
class ArgumentForm:
    """For a parameter's annotation: the argument's form in the usage line, where its name says too little."""

    text: str


class CommandLineError(Exit):
    """A command line that is not valid: one line, exit code 2."""

    def __init__(self, line: str) -> None:
        super().__init__(line, code=USAGE)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a verb's function, as an option or argument of the command line."""

    name: str  # in Python: `dry_run`, `from_`
    kind: type  # bool, int, float, str; list for an option that may be given several times
    default: Any
    positional: bool
    required: bool
    lowest: float | None
    help: str
    form: str = ""  # the argument's form in the usage line; empty: its name

    @property
    def flag(self) -> str:
        """The long flag: --dry-run."""
        return "--" + self.name.strip("_").replace("_", "-")

    @property
    def flags(self) -> list[str]:
        """The long flag, after the short one if it has one."""
        short = SHORT.get(self.name.strip("_"))
        return [short, self.flag] if short else [self.flag]

    @property
    def value(self) -> str:
        """What stands for an option's value in the help."""
        word = self.flag[2:]
        return "N" if self.kind in (int, float) else VALUES.get(word, word.upper())

    @property
    def shown(self) -> str:
        """An argument as the usage line shows it: JOB, [ID2]."""
        word = self.form or self.flag[2:].upper() + (" ..." if self.kind is list else "")
        return word if self.required else f"[{word}]"

    def read(self, text: str) -> Any:
        """Convert a word to the parameter's type; ArgumentTypeError says what is allowed."""
        if self.kind not in (int, float):
            # Empty means "not given" inside the verbs: `--stack "$UNSET"` must not become the default stack.
            if not text and self.default == "":
                raise argparse.ArgumentTypeError("is empty: give it a value, or leave it out")
            return text
        what = "a whole number" if self.kind is int else "a number"
        bound = "" if self.lowest is None else f" of at least {self.lowest:g}"
        try:
            value = self.kind(text)
        except ValueError:
            value = float("nan")
        if value != value or abs(value) == float("inf") or (self.lowest is not None and value < self.lowest):
            raise argparse.ArgumentTypeError(f"must be {what}{bound}, not {text!r}")
        return value


class Verb:
    """A verb: its name, its parameters, and the parser of its command line."""

    def __init__(self, name: str, task: Task[Any]) -> None:
        self.name = name
        self.body: Callable[..., Any] = task.body
        self.doc = inspect.cleandoc(task.body.__doc__ or "")
        self.parameters = _parameters(task)

    @property
    def summary(self) -> str:
        """The first line of its help."""
        return self.doc.partition("\n")[0]

    @property
    def options(self) -> dict[str, Parameter]:
        """Every flag, long and short, with its parameter."""
        return {flag: one for one in self.parameters if not one.positional for flag in one.flags}

    def takes(self, name: str) -> bool:
        """Whether its function has a parameter of this name."""
        return any(parameter.name == name for parameter in self.parameters)

    @property
    def usage(self) -> str:
        """`fab train JOB [section.key=value ...] [options]`"""
        words = [parameter.shown for parameter in self._arguments()]
        words += ["[section.key=value ...]"] if self.takes(_OVERRIDES) else []
        options = ["[options]"] if self.options else []
        # Behind -- nothing is an option of ours.
        words = [*options, *words] if any("--" in word for word in words) else [*words, *options]
        return " ".join(["fab", self.name, *words])

    def help(self) -> str:
        """The text of `fab VERB --help`."""
        parser = self._parser()
        for parameter in self._arguments():
            parser.add_argument(parameter.name, metavar=parameter.shown.strip("[]"), help=_escaped(parameter.help))
        return parser.format_help().rstrip()

    def read(self, words: Sequence[str], verbs: Iterable[str] = ()) -> dict[str, Any]:
        """The keyword arguments for its function; CommandLineError for words that it does not take. `verbs` are the
        other verbs' names."""
        end = words.index("--") if "--" in words else len(words)
        found, rest = self._parser().parse_known_args(list(words[:end]))
        for word in rest:
            if len(word) > 1 and word.startswith("-"):
                flag = word.partition("=")[0]
                near = meant(flag, self.options)
                raise self._error(f"there is no option {flag}{near} (all of them: fab {self.name} --help)")
        given = {name: value for name, value in vars(found).items() if value is not None}
        return given | self._read_arguments([*rest, *words[end + 1 :]], given, list(verbs))

    def _read_arguments(self, words: list[str], given: Mapping[str, Any], verbs: Sequence[str]) -> dict[str, Any]:
        read: dict[str, Any] = {}
        if self.takes(_OVERRIDES):
            read[_OVERRIDES] = [*given.get(_OVERRIDES, []), *filter(_OVERRIDE.fullmatch, words)]
            words = [word for word in words if not _OVERRIDE.fullmatch(word)]
        for parameter in self._arguments():
            if words and parameter.kind is list:
                read[parameter.name], words = words, []
            elif words:
                read[parameter.name] = words.pop(0)
            elif parameter.required:
                raise self._error(f"{parameter.shown} is missing: {self.usage}")
        if words and words[0] in verbs:
            raise self._error(f"one verb at a time: fab {self.name} ... && fab {' '.join(words)}")
        if words and self.takes(_OVERRIDES):
            raise self._error(f"{words[0]!r} is not section.key=value: {self.usage}")
        if words:
            raise self._error(f"one argument too many: {words[0]!r} (put quotes around spaces): {self.usage}")
        return read

    def _arguments(self) -> list[Parameter]:
        return [parameter for parameter in self.parameters if parameter.positional]

    def _parser(self) -> _Parser:
        parser = _Parser(
            prog=f"fab {self.name}",
            usage=_escaped(self.usage),
            description=self.doc,
            add_help=False,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        options = parser.add_argument_group("options")
        for one in dict.fromkeys(self.options.values()):
            text = _escaped(one.help)
            if one.kind is bool:
                options.add_argument(*one.flags, dest=one.name, action="store_true", default=None, help=text)
            elif one.kind is list:
                options.add_argument(*one.flags, dest=one.name, action="append", metavar=one.value, help=text)
            else:
                text += f" (default: {one.default:g})" if isinstance(one.default, int | float) else ""
                options.add_argument(
                    *one.flags, dest=one.name, type=one.read, help=text, metavar=one.value, action=_Once
                )
        options.add_argument("-h", "--help", action="store_true", default=None, help="show this, and do nothing else")
        return parser

    def _error(self, line: str) -> CommandLineError:
        return CommandLineError(f"fab {self.name}: {line}")


class _Once(argparse.Action):
    """Stores an option's value; refuses a second one that differs: `--stack a --stack b` works on both for nobody."""

    def __call__(
        self, parser: argparse.ArgumentParser, found: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        before = getattr(found, self.dest)
        if before not in (None, value):
            parser.error(f"{self.option_strings[-1]}: is given twice, as {before} and as {value}: give it once")
        setattr(found, self.dest, value)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        line = re.sub(r"^argument (?:-\w/)?", "", message)
        line = line.replace("expected one argument", "needs a value (one that begins with a dash: --option=-value)")
        raise CommandLineError(f"{self.prog}: {line}")


def meant(word: str, known: Iterable[str]) -> str:
    """`; did you mean --stack?`, or an empty string if no known word is similar."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _parameters(task: Task[Any]) -> list[Parameter]:
    hints = typing.get_type_hints(task.body, include_extras=True)
    texts = {**HELP, **task.help}
    found = []
    for one in list(inspect.signature(task.body).parameters.values())[1:]:
        kind, lowest, form = _read_hint(hints[one.name])
        required = one.default is inspect.Parameter.empty
        word = one.name.strip("_")
        text = texts.get(one.name) or texts.get(word) or texts.get(word.replace("_", "-"), "")
        positional = required or one.name in (task.positional or ())
        found.append(Parameter(one.name, kind, one.default, positional, required, lowest, text, form))
    return found


def _read_hint(hint: Any) -> tuple[type, float | None, str]:
    """(type, lower bound, form) of an annotation: `int`, `int | None`, `Annotated[int, AtLeast(1)] | None`."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    extras: list[Any] = []
    if typing.get_origin(hint) is typing.Annotated:
        hint, *extras = typing.get_args(hint)
    lowest = next((extra.lowest for extra in extras if isinstance(extra, AtLeast)), None)
    form = next((extra.text for extra in extras if isinstance(extra, ArgumentForm)), "")
    return (hint if hint in (bool, int, float, str) else list), lowest, form


def _escaped(text: str) -> str:
    """argparse formats its texts with %."""
    return text.replace("%", "%%")
