"""A job's text from the operator's machine, and vocabularies that a node cannot fetch, over a real SSH server."""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import c4_form
import pytest
import sshd
from http_server import Answer, Server, serve
from invoke.context import Context
from invoke.exceptions import Exit
from kube_api import certificate

from fabfile.remote import deploy
from fabfile.remote.fleet import Fleet
from fabfile.token_sets import encodings, published, sources, token_set
from fabfile.token_sets.published import PublishedFile
from fabfile.verbs.data import prepare
from infra.inventory import SshCluster, to_json
from training.data import token_set as tokens
from training.data import vocabulary
from training.data.vocabulary import VocabularyError


class Head:
    """One node with a home of its own, and the operator's folder beside it."""

    def __init__(self, home: Path, here: Path, cluster: SshCluster, file: Path) -> None:
        self.home, self.here, self.cluster, self.file = home, here, cluster, file

    def prepare(self, source: str, *overrides: str, **options: Any) -> None:
        words = [f"data.source={source}", "data.path=set", *overrides]
        prepare.body(Context(), "smoke", set_=words, inventory=str(self.file), **{"train_vocab": 300} | options)

    def place(self, word: str, **options: bool) -> str:
        with Fleet(self.cluster) as fleet:
            (placed,) = sources.brought(fleet, [word], **{"yes": False} | options)
        return placed


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    sshd.require()
    here, home, programs = tmp_path / "here", tmp_path / "home", tmp_path / "bin"
    for folder in (here, home, programs, tmp_path / "operator/.ssh"):
        folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "operator"))
    monkeypatch.chdir(here)
    for name, line in {"python": f'exec {sys.executable} "$@"', "sudo": 'exec "$@"', "systemctl": "exit 0"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    for module in (token_set, deploy):
        monkeypatch.setattr(module, "VENV", str(programs))
    yard = sshd.Yard(tmp_path, [])
    sshd.keygen(yard.identity)
    node = {"HOME": str(home), "PATH": f"{programs}:/usr/bin:/bin"}
    server = yard.start("127.0.0.4", sshd.free_port(), environment=node)
    cluster = yard.cluster(server.node("node1"))
    (tmp_path / "nodes.json").write_text(to_json(cluster))
    yield Head(home, here, cluster, tmp_path / "nodes.json")
    yard.stop()


def texts(folder: Path, count: int = 300) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number}.txt").write_text(f"the quick brown fox jumps over {number} lazy dogs. " * 9)
    return folder


@pytest.mark.acceptance  # the head trains a tokenizer
def test_a_folder_of_this_machine_becomes_a_token_set(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    texts(head.here / "texts")
    (head.here / "texts/link").symlink_to("/etc/passwd")
    head.prepare("texts")
    output = capsys.readouterr().out
    assert "texts: 300 files of this machine" in output and "are sent to node1" in output
    assert "next: fab train smoke data.path=set" in output, "on the tokens that were made"
    assert tokens.open(head.home / "set", verify=True).manifest["vocab_size"] <= 301
    (brought,) = (head.home / "sources").iterdir()
    assert not (brought / "link").exists(), "links are not followed"
    head.prepare("texts", overwrite=True)
    assert "node1 has them already" in capsys.readouterr().out


def test_wikitext_as_published_becomes_a_token_set_of_its_training_text(head: Head) -> None:
    (head.here / "wikitext-103-raw").mkdir()
    for split, count in (("train", 300), ("valid", 20), ("test", 20)):
        lines = "".join(f" The {split} fox jumps over {number} lazy dogs . \n" for number in range(count))
        (head.here / f"wikitext-103-raw/wiki.{split}.raw").write_text(lines)
    head.prepare("wikitext-103-raw", "data.documents=lines")
    splits = tokens.open(head.home / "set", verify=True).manifest["splits"]
    assert sum(facts["documents"] for facts in splits.values()) == 300


@pytest.mark.acceptance  # likewise
def test_a_folder_that_is_streamed_is_brought_and_read_where_it_then_is(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    c4_form.write(head.here / "c4")
    head.prepare("c4", "data.stream=true")
    output = capsys.readouterr().out
    assert "c4: 4 files of this machine" in output and "3 files, 0.0 MB, are read while training" in output
    assert "next: fab train smoke data.source=c4 data.path=set data.stream=true" in output
    (brought,) = (head.home / "sources").iterdir()
    made = tokens.open(head.home / "set", verify=True)
    assert made.manifest["stream"]["source"] == str(brought) and len(made.train) == 0 < len(made.val)
    with pytest.raises(Exit) as refused:
        head.prepare("texts/*.txt", "data.stream=true", "data.path=other")
    assert refused.value.code == 2


def test_where_the_text_is_is_said(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    texts(head.home / "there", 2)
    assert head.place("there") == "there"
    assert "read on node1" in capsys.readouterr().out
    absolute = str(head.home / "there")
    assert head.place(absolute) == absolute
    assert "read on node1" in capsys.readouterr().out
    texts(head.here / "there", 3)  # a relative path is this machine's first
    assert head.place("there").startswith("sources/")
    assert head.place("hf:Skylion007/openwebtext") == "hf:Skylion007/openwebtext"
    with pytest.raises(Exit, match=r"nowhere: neither on this machine .* nor on node1") as caught:
        head.place("nowhere")
    assert caught.value.code == 2


def test_a_file_and_a_glob_stay_what_they_are(head: Head) -> None:
    texts(head.here / "a/b", 2)
    (head.here / "a/notes.log").write_text("text of no known suffix")
    file = head.place("a/notes.log")
    assert file.endswith("/notes.log") and (head.home / file).read_text() == "text of no known suffix"
    pattern = head.place("a/**/*.txt")
    assert pattern.endswith("/**/*")
    found = sorted(path.name for path in head.home.glob(pattern) if path.is_file())
    assert found == ["0.txt", "1.txt"]


def test_much_text_is_asked_about(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    texts(head.here / "texts", 5)
    monkeypatch.setattr(sources, "ASK_BYTES", 100)
    with pytest.raises(Exit, match="no terminal to ask on: add --yes") as caught:
        head.place("texts")
    assert caught.value.code == 2 and not (head.home / "sources").exists()
    assert head.place("texts", yes=True).startswith("sources/")


def test_half_of_it_is_never_taken_for_the_whole(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    texts(head.here / "texts", 5)

    def broken(out: Any, local: sources.LocalFiles) -> None:
        out._channel.close()
        raise OSError("the connection broke")

    monkeypatch.setattr(sources, "_pack", broken)
    with pytest.raises(Exit, match="texts was not sent"):
        head.place("texts")
    monkeypatch.undo()
    monkeypatch.chdir(head.here)
    folder = head.home / head.place("texts")
    assert len(list(folder.iterdir())) == 5


def test_a_head_that_cannot_write_says_why(head: Head) -> None:
    texts(head.here / "texts", 5)
    (head.home / "sources").write_text("a file where the folder goes")
    with pytest.raises(Exit, match=r"node1: texts was not sent: mkdir: cannot create directory .*sources"):
        head.place("texts")


@pytest.mark.acceptance  # four runs of prepare
def test_the_options_that_prepare_suggests_are_there(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.dumps({"content": f"row {number} says that much of it is text. " * 9}) for number in range(200)]
    (head.here / "rows.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.raises(Exit):
        head.prepare("rows.jsonl")
    assert "--text-key" in capsys.readouterr().err
    head.prepare("rows.jsonl", text_key="content")
    broken = texts(head.here / "broken")
    (broken / "bad.txt").write_bytes(b"\xff\xfe\x80 not UTF-8")
    with pytest.raises(Exit):
        head.prepare("broken", "data.path=other")
    assert "--invalid" in capsys.readouterr().err
    head.prepare("broken", "data.path=other", invalid="skip")
    assert tokens.open(head.home / "other", verify=True).manifest["source"]["skipped"] == 1


RANKS = b"IQ== 0\n"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The host of the published files, which has RANKS at the address of o200k_base."""
    pem, key = certificate()
    (tmp_path / "ca.pem").write_bytes(pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    contents = {
        "/encodings/o200k_base.tiktoken": Answer(body=RANKS),
        "/moved": Answer(302, headers={"Location": "/encodings/o200k_base.tiktoken"}),
        "/canary": Answer(302, headers={"Location": f"file://{tmp_path}/canary"}),
    }
    with serve(lambda asked: contents.get(asked.path, Answer(404)), identity=pem + key) as server:
        monkeypatch.setattr(published, "HOST", server.url.removeprefix("https://"))
        file = PublishedFile("encodings/o200k_base.tiktoken", hashlib.sha256(RANKS).hexdigest())
        monkeypatch.setitem(published.FILES, "o200k_base", (file,))
        yield server


def cached(home: Path, path: str) -> Path:
    """Where tiktoken on the head has a published file."""
    url = f"https://{vocabulary.HOST}/{path}"
    return home / ".cache/tiktoken" / hashlib.sha1(url.encode()).hexdigest()


def lacks(tmp_path: Path, answer: str) -> None:
    """Let the head answer so when it is asked what it lacks; its other programs are real."""
    real = tmp_path / "bin/real"
    if not real.exists():
        shutil.copy(tmp_path / "bin/python", real)
    lie = f"*' missing '*) printf '%s\\n' {shlex.quote(answer)};;"
    (tmp_path / "bin/python").write_text(f'#!/bin/sh\ncase "$*" in {lie} *) exec {real} "$@";; esac\n')


@pytest.mark.acceptance  # five runs of programs on the head
def test_this_machine_fetches_what_the_head_cannot(
    head: Head, tmp_path: Path, host: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = cached(head.home, "encodings/o200k_base.tiktoken")
    with Fleet(head.cluster) as fleet:
        code = deploy.deploy(fleet, [head.cluster.head])["node1"].folder
        lacks(tmp_path, '["o200k_base.tiktoken"]')
        encodings.bring(fleet, code, "o200k_base")
        assert kept.read_bytes() == RANKS and [file.name for file in kept.parent.iterdir()] == [kept.name]
        assert f"node1 cannot reach {host.url}/encodings/o200k_base.tiktoken: fetched here" in capsys.readouterr().out
        lacks(tmp_path, "[]")
        encodings.bring(fleet, code, "o200k_base")
        encodings.bring(fleet, code, "an encoding that nobody has published")
    assert capsys.readouterr().out == "" and len(host.asked) == 1


LIES = (
    '[["file://CANARY", "KEPT"]]',
    '["file://CANARY"]',
    '["CANARY"]',
    '["../../o200k_base.tiktoken"]',
    '["vocab.bpe"]',
    '[["o200k_base.tiktoken", "/etc/cron.d/x"]]',
    '{"o200k_base.tiktoken": "CANARY"}',
    "not JSON",
    "[" * 100_000,
)


def test_the_head_says_which_file_and_not_from_where(head: Head, tmp_path: Path, host: Server) -> None:
    """A lying head has this machine read no file of its own, ask no address, and write nowhere."""
    (tmp_path / "canary").write_text("the operator's key")
    kept = tmp_path / "kept"
    line = r"^node1: encoding o200k_base: its answer names other files than o200k_base\.tiktoken: [^\n]+$"
    with Fleet(head.cluster) as fleet:
        code = deploy.deploy(fleet, [head.cluster.head])["node1"].folder
        before = {path for path in head.home.rglob("*") if "__pycache__" not in path.parts}
        for lie in LIES:
            lacks(tmp_path, lie.replace("CANARY", str(tmp_path / "canary")).replace("KEPT", str(kept)))
            with pytest.raises(Exit, match=line) as refused:
                encodings.bring(fleet, code, "o200k_base")
            assert refused.value.code == 1 and host.asked == [] and not kept.exists(), lie[:80]
    assert {path for path in head.home.rglob("*") if "__pycache__" not in path.parts} == before


def test_only_what_was_published_is_sent(tmp_path: Path, host: Server) -> None:
    (tmp_path / "canary").write_text("the operator's key")
    digest = hashlib.sha256(RANKS).hexdigest()
    other = PublishedFile("encodings/o200k_base.tiktoken", "0" * 64)
    with pytest.raises(Exit, match=f"its SHA-256 is {digest}, and {'0' * 64} was published: not sent to node1"):
        encodings.fetch(other, "node1", "o200k_base")
    for path in ("moved", "canary"):
        with pytest.raises(
            Exit, match=r"neither node1 nor this machine can fetch https://[^\n]+ \(Found( - [^\n]+ is not allowed)?\)"
        ):
            encodings.fetch(PublishedFile(path, digest), "node1", "o200k_base")
    assert [asked.path for asked in host.asked][1:] == ["/moved", "/canary"], "a redirection is not followed"


def test_where_nobody_can_fetch_it_the_ways_out_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "HOST", "127.0.0.1:9")
    with pytest.raises(Exit, match=r"neither node1 nor this machine can fetch https.*\n.*--ranks FILE") as caught:
        encodings.fetch(published.FILES["gpt2"][0], "node1", "gpt2")
    assert caught.value.code == 1


def test_what_is_missing_of_a_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(vocabulary, "is_reachable", lambda: False)
    assert vocabulary.missing("gpt2") == ["vocab.bpe", "encoder.json"]
    digest = hashlib.sha256(b"there").hexdigest()
    vocabulary.keep("gpt2", "vocab.bpe", digest, io.BytesIO(b"there"))
    for file, content, why in (("encoder.json", b"the", "another checksum"), ("../encoder.json", b"there", "no file")):
        with pytest.raises(VocabularyError, match=why):
            vocabulary.keep("gpt2", file, digest, io.BytesIO(content))
    assert len(list(tmp_path.iterdir())) == 1, "what was cut off has no name in the cache"
    assert vocabulary.main(["missing", "gpt2"]) == 0 and capsys.readouterr().out == '["encoder.json"]\n'
    assert vocabulary.main(["keep", "gpt2"]) == 2
    assert vocabulary.missing("unknown") == []
    monkeypatch.setattr(vocabulary, "is_reachable", lambda: True)
    assert vocabulary.missing("gpt2") == []


def test_the_addresses_and_checksums_are_tiktokens_own() -> None:
    import inspect

    from tiktoken_ext import openai_public

    paths = {name: tuple(file.path for file in files) for name, files in published.FILES.items()}
    assert paths == vocabulary.FILES and published.HOST == vocabulary.HOST
    for name, files in published.FILES.items():
        source = inspect.getsource(getattr(openai_public, name))
        for file in files:
            key = {"gpt2": f"{file.name.replace('.', '_')}_"}.get(name, "expected_")
            assert file.url.startswith("https://") and f'"{file.url}"' in source
            assert f'{key}hash="{file.sha256}"' in source


@pytest.mark.parametrize("is_known", [False, True])
def test_a_copy_to_a_node_that_was_made_again_names_what_introduces_it(
    is_known: bool, yard: sshd.Yard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what ssh itself says there of a key that it does not know; not where the copy fails for another reason."""
    port = sshd.free_port()
    cluster = yard.cluster(*(yard.start(f"127.0.0.{n + 1}", port).node(f"node{n}") for n in (1, 2)))
    node1, node2 = cluster.nodes
    keys = tmp_path / "keys"
    keys.write_text(f"[{node2.address}]:{port} {node2.host_key}\n" if is_known else "")
    options = f"-o BatchMode=yes -o IdentityFile=none -o StrictHostKeyChecking=yes -o UserKnownHostsFile='{keys}'"
    with Fleet(cluster) as fleet, pytest.raises(Exit) as no:
        token_set.run(fleet, [node1], f"ssh {options} -p {port} {node2.address} true || exit 1")
    shown = capsys.readouterr()
    assert no.value.code == 1 and "node1: " in shown.err
    hints = [line for line in shown.err.splitlines() if line.endswith("do not know its key yet; run: fab wait")]
    assert len(hints) == (0 if is_known else 1) and ("verification failed" in shown.err) != is_known
