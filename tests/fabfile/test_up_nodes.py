"""`fab up --nodes N` that comes to nothing leaves the file of the stack as it was; one that has begun keeps N."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context
from invoke.exceptions import Exit

from fabfile import question
from fabfile.stacks import capacity, pulumi_cli, work_lost
from fabfile.verbs import up as verbs
from infra.inventory import Node, SshCluster, to_json

FILE = "config:\n  trainyard:nodes: 3  # as I like it\n"
PREFLIGHT: dict[str, Any] = {"facts": {"cloud": "", "kubernetes": False}, "bill": {}, "plugins": []}


class Played:
    """The stack `yard` of a checkout; the writing of its file is real enough, what makes machines is played."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *, pulumi: bool) -> None:
        self.file = root / "stacks" / "Pulumi.yard.yaml"
        self.file.parent.mkdir()
        self.file.write_text(FILE)
        self.seen: list[str] = []
        """The file as the engine found it."""
        self.ran: list[list[str]] = []
        self.refusal: Exit | KeyboardInterrupt | None = None
        """What the pre-flight ends with."""
        self.codes = {"preview": 0, "up": 0}
        self.began = False
        for name, value in {
            **{"ROOT": root, "has_pulumi": lambda: pulumi, "ask": self.ask, "follow": self.follow},
            **{"identity": lambda _stack: {}, "facts_of": lambda _stack: {"cloud": ""}, "exists": lambda _stack: False},
        }.items():
            monkeypatch.setattr(pulumi_cli, name, value)
        monkeypatch.setattr(verbs, "announce", lambda _bill: None)
        monkeypatch.setattr(verbs, "must_be_answerable", lambda _yes: None)
        monkeypatch.setattr(capacity, "up", self.up)
        monkeypatch.setattr(work_lost, "say_of_up", lambda *_: None)

    def ask(self, argv: Sequence[str], **_more: str) -> str:
        if "infra.config.configure" in argv:
            text = self.file.read_text()
            if "--" in argv:
                self.file.write_text(text.replace(f"nodes: {self.nodes}", f"nodes: {argv[-1]}"))
            return json.dumps([{"key": "nodes", "value": self.nodes}])
        if "infra.preflight" in argv and self.refusal:
            raise self.refusal
        if "select" in argv:
            self.file.write_text(self.file.read_text() + "encryptionsalt: v1:abc=\n")
        return json.dumps(PREFLIGHT)

    @property
    def nodes(self) -> str:
        return self.file.read_text().partition("nodes: ")[2].split()[0]

    def follow(self, argv: Sequence[str], **_more: str) -> int:
        self.seen.append(self.nodes)
        self.ran.append(list(argv))
        return next(code for verb, code in self.codes.items() if verb in argv)

    def up(self, *_: Any) -> capacity.Update:
        self.seen.append(self.nodes)
        return capacity.Update(self.codes["up"], self.began)


@pytest.fixture
def embedded(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(tmp_path, monkeypatch, pulumi=False)


@pytest.fixture
def pulumi(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(tmp_path, monkeypatch, pulumi=True)


def up(nodes: int = 2, *, yes: bool = False) -> None:
    verbs.up(Context(), stack="yard", yes=yes, nodes=nodes)


def answer(word: str | type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(_question: str) -> str:
        if isinstance(word, str):
            return word
        raise word

    monkeypatch.setattr(question, "input", answered, raising=False)


@pytest.mark.parametrize(("word", "ends"), [("n", Exit), (KeyboardInterrupt, KeyboardInterrupt), (EOFError, EOFError)])
def test_a_question_that_is_not_answered_with_yes_changes_nothing(
    word: str | type[BaseException],
    ends: type[BaseException],
    embedded: Played,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer(word, monkeypatch)
    with pytest.raises(ends):
        up()
    assert embedded.seen == ["2"] and embedded.file.read_text() == FILE
    assert "stacks/Pulumi.yard.yaml: nodes = 3, as before" in capsys.readouterr().out


@pytest.mark.parametrize("refusal", [Exit("this machine has no room", code=2), KeyboardInterrupt()])
def test_a_preflight_that_refuses_changes_nothing(refusal: Exit | KeyboardInterrupt, embedded: Played) -> None:
    embedded.refusal = refusal
    with pytest.raises(type(refusal)):
        up(yes=True)
    assert embedded.file.read_text() == FILE and embedded.seen == []


@pytest.mark.parametrize(("code", "nodes"), [(0, "2"), (1, "2"), (130, "2"), (2, "3")])
def test_an_up_that_has_begun_keeps_the_number(code: int, nodes: str, embedded: Played) -> None:
    """Exit code 2 is the engine's for what it refuses before it begins."""
    embedded.codes["up"] = code
    if code == 0:
        up(yes=True)
    else:
        with pytest.raises(Exit):
            up(yes=True)
    assert embedded.nodes == nodes


@pytest.mark.parametrize(("began", "nodes"), [(False, "3"), (True, "2")])
def test_with_pulumi_its_own_log_says_whether_it_began(began: bool, nodes: str, pulumi: Played) -> None:
    """Pulumi asks itself, and has written its salt to the file by then: that stays."""
    pulumi.codes["up"], pulumi.began = 1, began
    with pytest.raises(Exit):
        up()
    assert pulumi.seen == ["2"] and pulumi.nodes == nodes
    assert "# as I like it" in pulumi.file.read_text() and "encryptionsalt" in pulumi.file.read_text()


def test_an_up_without_the_option_writes_nothing(pulumi: Played) -> None:
    pulumi.codes["up"] = 1
    with pytest.raises(Exit):
        verbs.up(Context(), stack="yard", yes=True)
    assert pulumi.nodes == "3"


def test_a_preview_shows_what_up_would_do_and_changes_nothing(pulumi: Played) -> None:
    verbs.preview(Context(), stack="yard")
    assert pulumi.ran == [["pulumi", "preview", "--stack", "yard", "--refresh"]]
    assert pulumi.nodes == "3"


def test_an_up_that_is_done_says_what_is_next(pulumi: Played, capsys: pytest.CaptureFixture[str]) -> None:
    up(yes=True)
    assert pulumi.nodes == "2" and capsys.readouterr().out.rstrip().endswith("next: fab wait")


@pytest.mark.parametrize("engine", ["pulumi", "embedded"])
def test_after_an_up_plain_ssh_reads_where_the_nodes_are_now(
    engine: str, request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the files that `fab ssh-config` wrote before."""
    played = request.getfixturevalue(engine)

    def inventory(_stack: str) -> str:
        assert played.seen, "the nodes are asked for after the change"
        return to_json(SshCluster(name="yard", nodes=(Node(name="node1", private_ip="10.0.0.9", role="head"),)))

    monkeypatch.setattr(pulumi_cli, "stack_output", inventory)
    config = home / ".trainyard/yard/ssh_config"
    config.parent.mkdir(parents=True)
    config.write_text("Host node1\n    HostName 10.0.0.1\n")
    up(yes=True)
    assert "HostName 10.0.0.9" in config.read_text() and "10.0.0.1\n" not in config.read_text()


def test_nobody_waits_for_the_boot_of_nodes_of_kubernetes(
    pulumi: Played, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PREFLIGHT["facts"], "kubernetes", True)
    up(yes=True)
    assert capsys.readouterr().out.rstrip().endswith("next: fab kubeconfig")


@pytest.mark.parametrize("verb", [verbs.up, verbs.preview])
def test_without_pulumi_a_cloud_is_refused_before_it_is_asked(
    verb: Any, tmp_path: Path, good: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process is started, the pre-flight; the account that it would ask is nowhere."""
    for name in ("infra", "stacks"):
        shutil.copytree(pulumi_cli.ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(pulumi_cli.ROOT / "Pulumi.yaml", tmp_path)
    own = {"adminCidr": "203.0.113.7/32", "owner": "me", "alertEmail": "me@example.org", "publicKey": good["publicKey"]}
    file = tmp_path / "stacks/Pulumi.aws-xeon.yaml"
    keys = "".join(f"  trainyard:{key}: {value}\n" for key, value in own.items())
    file.write_text(file.read_text().replace("config:\n", f"config:\n{keys}"))
    started: list[str] = []
    ask = pulumi_cli.ask
    for name, value in {
        **{"ROOT": tmp_path, "has_pulumi": lambda: False, "identity": lambda _stack: {}},
        "ask": lambda argv: started.append(argv[2]) or ask(argv),
    }.items():
        monkeypatch.setattr(pulumi_cli, name, value)
    with pytest.raises(Exit, match="stack aws-xeon is in a cloud: that needs the `pulumi` command") as no:
        verb(Context(), stack="aws-xeon", **({"yes": True} if verb is verbs.up else {}))
    assert no.value.code == 2 and "\n" not in str(no.value.message) and started == ["infra.preflight"]
