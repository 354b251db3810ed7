"""The manifest of a token set: what the files beside it must be, to the byte. The standard library only.

It carries a checksum of itself and has one way of being written, so that no edit of it passes for the original.
It is published last, under its final name only when all else is on disk: a folder without one is not whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 1
NAME = "manifest.json"
RANKS = "vocab.tiktoken"  # prepare always puts one there
WORK = ".prepare"  # the folder of an unfinished prepare, inside the token set's
DOWNLOAD = ".download"  # that of an unfinished download
SPLITS = ("train", "val")
ITEM_SIZE = {"uint16": 2, "uint32": 4}
GPT2_VOCABULARY = 50257
_SHA256 = re.compile(r"[0-9a-f]{64}")


class TokenError(ValueError):
    """A token set that cannot be used; the message is one line for the user."""


def dtype_for(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 2**16 else "uint32"


def render(content: Mapping[str, Any]) -> str:
    """The text of a manifest (or of another record): sorted, with a checksum over everything else in it."""
    body = {key: value for key, value in content.items() if key != "checksum"}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "checksum": digest}, sort_keys=True, indent=1) + "\n"


def parse(path: Path) -> dict[str, Any]:
    """What `render` wrote to this file; a TokenError for one that was torn or edited."""
    try:
        return parse_bytes(path.read_bytes(), str(path))
    except OSError as error:
        raise TokenError(f"{path}: {error.strerror}") from error


def parse_bytes(raw: bytes, where: str) -> dict[str, Any]:
    """The same of a manifest that is somewhere else; `where` names it in errors."""
    try:
        text = raw.decode()
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TokenError(f"{where}: torn or altered (not JSON)") from error
    if not isinstance(content, dict) or render(content) != text:
        raise TokenError(f"{where}: torn or altered (its checksum does not match)")
    return content


def listed(content: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Bytes and SHA-256 of each file beside a manifest, that of a token set or of a checkpoint, by its name."""
    try:
        if "splits" in content:
            item, encoding = ITEM_SIZE[content["dtype"]], content["encoding"]
            splits = content["splits"].values()
            files = {each["file"]: {"bytes": each["tokens"] * item, "sha256": each["sha256"]} for each in splits}
            if "ranks" in encoding:
                files[encoding["ranks"]] = {"bytes": None, "sha256": encoding["sha256"]}
        else:
            files = {name: {key: each[key] for key in ("bytes", "sha256")} for name, each in content["files"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise TokenError(f"{where}: not a manifest of files with checksums ({error})") from error
    for name, each in files.items():
        if not is_plain(name) or name == NAME:
            raise TokenError(f"{where}: {name!r} is not a plain file name")  # it must not lead out of its folder
        size = each["bytes"]
        known = size is None or (isinstance(size, int) and not isinstance(size, bool) and size >= 0)
        if not known or not _SHA256.fullmatch(str(each["sha256"])):
            raise TokenError(f"{where}: {name} has no size or no checksum")
    return files


def is_plain(name: object) -> bool:
    """Whether this is the name of a file in a folder itself: no path, not hidden, only characters that can be seen."""
    if not isinstance(name, str) or not 0 < len(name.encode(errors="surrogatepass")) <= 255 or name.startswith("."):
        return False
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return not any(letter in "/\\" or unicodedata.category(letter) in hidden for letter in name)


def inside(folder: Path, name: str) -> Path:
    """A file of the folder; a TokenError for a link that leads out of it."""
    path = folder / name
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise TokenError(f"{path}: is a link that leads out of the folder")
    return path


def publish(path: Path, text: str) -> None:
    """Puts the text under this name whole or not at all, on disk when this returns."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A rename is on disk only when the folder that holds the name is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(folder: Path) -> dict[str, Any]:
    """The folder's manifest; for a bare nanoGPT folder, what can be said of it. Sizes are always checked."""
    if not folder.is_dir():
        raise TokenError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")
    if (folder / NAME).exists():
        content = parse(folder / NAME)
        check(folder, content)
        return content
    if (folder / WORK).exists():
        raise TokenError(f"{folder}: an unfinished prepare; the same command again finishes it")
    if (folder / "train.bin").exists():
        return bare(folder)
    if (folder / DOWNLOAD).exists():
        raise TokenError(f"{folder}: an unfinished download; the same command again finishes it")
    raise TokenError(f"{folder}: no token set (neither {NAME} nor nanoGPT's train.bin)")


def check(folder: Path, content: dict[str, Any]) -> None:
    if content.get("format") != FORMAT:
        raise TokenError(f"{folder / NAME}: format {content.get('format')!r}, this version reads {FORMAT}")
    try:
        item = ITEM_SIZE[content["dtype"]]
        splits = [content["splits"][split] for split in SPLITS]
        expected = {split["file"]: split["tokens"] * item for split in splits}
        known = isinstance(content["vocab_size"], int) and isinstance(content["encoding"]["name"], str)
    except (KeyError, TypeError) as error:
        raise TokenError(f"{folder / NAME}: not a token set's manifest ({error})") from error
    if not known:
        raise TokenError(f"{folder / NAME}: not a token set's manifest (vocab_size or encoding)")
    for name in (*expected, content["encoding"].get("ranks", NAME)):
        if not is_plain(name):  # a manifest must not lead out of its folder
            raise TokenError(f"{folder / NAME}: {name!r} is not a plain file name")
    for name, size in expected.items():
        if size_of(inside(folder, name)) != size:
            raise TokenError(f"{folder / name}: {size_of(folder / name)} bytes, the manifest says {size}")


def verify(folder: Path, content: Mapping[str, Any]) -> None:
    """Reads every file that the manifest names and compares its checksum."""
    files = {split["file"]: split["sha256"] for split in content["splits"].values() if "sha256" in split}
    if "ranks" in content["encoding"]:
        files[content["encoding"]["ranks"]] = content["encoding"]["sha256"]
    for name, expected in files.items():
        size_of(inside(folder, name))
        if checksum(folder / name) != expected:
            raise TokenError(f"{folder / name}: altered (its checksum does not match the manifest's)")


def bare(folder: Path) -> dict[str, Any]:
    """nanoGPT's own folder: uint16 without a header, GPT-2's vocabulary, and nothing that could be verified."""
    if (folder / RANKS).exists():
        raise TokenError(f"{folder}: the {NAME} that belongs to its {RANKS} is missing")
    if (folder / "meta.pkl").exists():
        raise TokenError(
            f"{folder}: nanoGPT's meta.pkl says that this is not GPT-2's vocabulary, and a pickle is not opened: "
            "prepare the text again"
        )
    splits = {}
    for split in SPLITS:
        path = folder / f"{split}.bin"
        size = size_of(path) if split == "train" or path.exists() else 0
        if size % 2:
            raise TokenError(f"{path}: {size} bytes are not a whole number of uint16 tokens")
        splits[split] = {"file": path.name, "tokens": size // 2}
    return {
        "format": 0,
        "dtype": "uint16",
        "vocab_size": GPT2_VOCABULARY,
        "encoding": {"name": "gpt2"},
        "splits": splits,
        "source": {"arguments": [str(folder)]},
    }


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise TokenError(f"{path}: {error.strerror}") from error
