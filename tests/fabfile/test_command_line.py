"""A verb's words: which become arguments, which are refused, and what its help shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from invoke.context import Context
from invoke.tasks import task

from fabfile import program
from fabfile.command_line import SHORT, VALUES, AtLeast, CommandLineError, Verb

VERBS = program.verbs()


NAMES = [("run", "names"), ("bootstrap", "names")]


@task(help={"job": "its id", "dry-run": "only say it"})
def toy(
    _c: Context,
    job: str,
    set_: Sequence[str] | None = None,
    tokens: Annotated[int, AtLeast(1)] = 100,
    rate: float = 0.5,
    nodes: Annotated[int, AtLeast(1)] | None = None,
    dry_run: bool = False,
    from_: str = "",
) -> None:
    """Do something: 100 % of it."""


@task(positional=["id", "id2"])
def pair(_c: Context, id: str, id2: str = "", out: str = "") -> None:
    """Compare."""


TOY, PAIR = Verb("toy", toy), Verb("pair", pair)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("j.toml", {"job": "j.toml", "set_": []}),
        ("j train.steps=3 --nodes 2", {"job": "j", "set_": ["train.steps=3"], "nodes": 2}),
        (
            "--tokens=7 j --set train.lr=1 data.path=/a",
            {"job": "j", "set_": ["train.lr=1", "data.path=/a"], "tokens": 7},
        ),
        ("-n2 j --dry-run", {"job": "j", "set_": [], "nodes": 2, "dry_run": True}),
        ("-n 2 j --nodes 2", {"job": "j", "set_": [], "nodes": 2}),
        ("j --rate -1.5 --from=-x", {"job": "j", "set_": [], "rate": -1.5, "from_": "-x"}),
        ("train.steps=3 j", {"job": "j", "set_": ["train.steps=3"]}),
        ("-- -j", {"job": "-j", "set_": []}),
    ],
)
def test_words_become_arguments(words: str, given: dict[str, Any]) -> None:
    assert TOY.read(words.split()) == given


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("a", {"id": "a"}),
        ("a b", {"id": "a", "id2": "b"}),
        ("a --out x b", {"id": "a", "id2": "b", "out": "x"}),
        ("-ox a b", {"id": "a", "id2": "b", "out": "x"}),
    ],
)
def test_an_argument_may_be_left_out(words: str, given: dict[str, Any]) -> None:
    assert PAIR.read(words.split()) == given


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "JOB is missing: fab toy JOB [section.key=value ...] [options]"),
        ("train.steps=3", "JOB is missing"),
        ("j --tokens abc", "--tokens: must be a whole number of at least 1, not 'abc'"),
        ("j --tokens 0", "--tokens: must be a whole number of at least 1, not '0'"),
        ("j -n 0", "--nodes: must be a whole number of at least 1, not '0'"),
        ("j --nodes x", "--nodes: must be a whole number of at least 1, not 'x'"),
        ("j --rate nan", "--rate: must be a number, not 'nan'"),
        ("j --tokens", "--tokens: needs a value"),
        ("j --from --dry-run", "--from: needs a value"),
        ("j --from=", "--from: is empty: give it a value, or leave it out"),
        ("j -n 2 --nodes 3", "--nodes: is given twice, as 2 and as 3: give it once"),
        ("j --token 3", "there is no option --token; did you mean --tokens?"),
        ("j -R", "there is no option -R"),
        ("j --dry-run=yes", "--dry-run: ignored explicit argument 'yes'"),
        ("j k", "'k' is not section.key=value"),
        ("j pair", "one verb at a time: fab toy ... && fab pair"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_line(words: str, line: str) -> None:
    with pytest.raises(CommandLineError) as error:
        TOY.read(words.split(), ["toy", "pair"])
    assert error.value.code == 2
    assert str(error.value.message).startswith(f"fab toy: {line}") and "\n" not in str(error.value.message)


def test_one_argument_too_many() -> None:
    with pytest.raises(CommandLineError, match="one argument too many: 'c'"):
        PAIR.read(["a", "b", "c"])


def test_the_help_of_a_verb_has_every_option() -> None:
    text = TOY.help()
    for part in (
        "usage: fab toy JOB [section.key=value ...] [options]",
        "100 % of it",
        "--nodes N",
        "only say it",
    ):
        assert part in text
    assert "(default: 100)" in text and "-h, --help" in text


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_reads_and_shows_its_options(name: str) -> None:
    verb = VERBS[name]
    assert verb.summary and f"usage: fab {name}" in verb.help()
    for parameter in verb.parameters:
        assert parameter.help, f"fab {name} {parameter.flag} has no help"


@pytest.mark.parametrize(
    ("verb", "expected"), [("up", "how many"), ("train", "how many"), ("launch", "how many"), *NAMES]
)
def test_the_help_says_whether_nodes_are_counted_or_named(verb: str, expected: str) -> None:
    (nodes,) = [parameter for parameter in VERBS[verb].parameters if parameter.name == "nodes"]
    assert nodes.help.startswith(expected)
    assert (nodes.kind is int) == (expected == "how many")


def test_every_verb_that_takes_nodes_is_in_the_list_above() -> None:
    assert {verb.name for verb in VERBS.values() if verb.takes("nodes")} == {
        "up",
        "train",
        "launch",
        "run",
        "bootstrap",
    }


def test_a_short_flag_is_the_same_option_with_every_verb() -> None:
    for verb in VERBS.values():
        for flag, parameter in verb.options.items():
            if not flag.startswith("--"):
                assert SHORT[parameter.name.strip("_")] == flag, f"fab {verb.name} {flag}"
        flags = [flag for parameter in verb.parameters if not parameter.positional for flag in parameter.flags]
        assert len(flags) == len({*flags, "-h"}) - 1, f"fab {verb.name} has a flag twice"


def test_the_help_says_what_an_option_s_value_is() -> None:
    shown = VERBS["launch"].help()
    for option in ("--per slot|node|head", "--env NAME=VALUE", "--workdir FOLDER"):
        assert option in shown
    assert re.search("-s( NAME)?, --stack NAME", shown), "Python 3.13 says it once"
    flags = {flag.removeprefix("--") for verb in VERBS.values() for flag in verb.options}
    assert flags >= VALUES.keys()
