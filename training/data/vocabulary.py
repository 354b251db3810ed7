"""Vocabularies: tiktoken's published ones, any .tiktoken rank file, Llama's, or one trained on the corpus.

A rank file has a line for each token: its bytes in base64 and its number. It contains neither the pattern that splits
text into words nor the separator between documents. Published files are recognised by their checksum; any other gets
GPT-2's pattern unless one is given, and the number after its last token as separator.

    python -m training.data.vocabulary missing NAME
        prints, as JSON, the names of the files that are absent and cannot be fetched
    python -m training.data.vocabulary keep NAME FILE SHA256
        takes one of them from stdin
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, ClassVar, Protocol

import numpy.typing as npt
import tiktoken

from training.manifest import RANKS, SEPARATOR

NAMES = ("gpt2", "r50k_base", "p50k_base", "cl100k_base", "o200k_base")
HOST = "openaipublic.blob.core.windows.net"
FILES = {
    "gpt2": ("gpt-2/encodings/main/vocab.bpe", "gpt-2/encodings/main/encoder.json"),
    **{name: (f"encodings/{name}.tiktoken",) for name in NAMES[1:]},
}  # paths on HOST, from tiktoken_ext.openai_public; fabfile/token_sets/published.py has them with their checksums
REACH_TIMEOUT = 10.0  # seconds that HOST has to answer
BYTES = 256
SMALLEST = BYTES + 2  # every byte, one token more, the separator

PATTERNS = {  # tiktoken's, but GPT-2's without possessive quantifiers: the same words, 1.15 times as fast
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
    r"|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
REST = r"|(?s:.)"
PUBLISHED = {  # SHA-256 of the rank file: name, pattern, number of the separator
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": ("r50k_base", "gpt2", 50256),
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": ("p50k_base", "gpt2", 50256),
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": ("cl100k_base", "cl100k", 100257),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": ("o200k_base", "o200k", 199999),
}


class VocabularyError(ValueError):
    """A vocabulary that cannot be fetched or used; the message is one line for the user."""


class Encoding(Protocol):
    """What is used of tiktoken.Encoding."""

    name: str

    @property
    def n_vocab(self) -> int:
        """One more than the largest token."""

    def encode_to_numpy(
        self, text: str, *, allowed_special: Set[str] = ..., disallowed_special: Collection[str] = ...
    ) -> npt.NDArray[Any]:
        """The tokens of a text, uint32. SEPARATOR ends a document if it is in `allowed_special`, and is text if it is
        in neither set. ValueError for a text that the encoding cannot take."""

    def encode_single_token(self, text: str) -> int:
        """The number of a token, SEPARATOR included. KeyError if there is no such token."""

    def decode_single_token_bytes(self, token: int) -> bytes:
        """A token's bytes, which may be a part of a character. KeyError if there is no such token."""


@dataclass(frozen=True)
class Vocabulary:
    """What tokens are: `ranks` has the number of each token's bytes, `pattern` is the regular expression that cuts a
    text into words, `separator` the number of the token between documents."""

    name: str
    ranks: Mapping[bytes, int]
    pattern: str
    separator: int
    file: ClassVar[str] = RANKS
    """The name of its file in a token set."""

    @property
    def size(self) -> int:
        """One more than the largest token."""
        return max(self.separator, *self.ranks.values()) + 1

    def encoding(self) -> Encoding:
        """tiktoken's object; VocabularyError for an invalid pattern."""
        try:
            special, ranks = {SEPARATOR: self.separator}, dict(self.ranks)
            return tiktoken.Encoding(self.name, pat_str=self.pattern, mergeable_ranks=ranks, special_tokens=special)
        except ValueError as error:
            raise VocabularyError(f"pattern {self.pattern!r}: {str(error).splitlines()[0]}") from error

    def digest(self) -> str:
        """SHA-256 of the rank file that `text` makes."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def text(self) -> str:
        """The rank file."""
        ordered = sorted(self.ranks.items(), key=lambda item: item[1])
        return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ordered)


def named(name: str) -> Vocabulary:
    """One of tiktoken's published vocabularies, downloaded once. VocabularyError if it cannot be fetched."""
    if name not in NAMES:
        raise VocabularyError(f"encoding {name!r}: not one of {', '.join(NAMES)} (--ranks takes any rank file)")
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(cache_folder()))
    try:
        encoding = tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:
        raise VocabularyError(
            f"encoding {name}: its ranks could not be fetched from {HOST} ({type(error).__name__}); they are needed "
            "once. Without them: --ranks FILE, or --train-vocab N"
        ) from error
    number = encoding.encode_single_token
    special = {number(token) for token in encoding.special_tokens_set}
    ranks = {token: number(token) for token in encoding.token_byte_values() if number(token) not in special}
    pattern = next((pattern for known, pattern, _ in PUBLISHED.values() if known == name), "gpt2")
    return checked(Vocabulary(name, ranks, PATTERNS[pattern], number(SEPARATOR)), name)


def cache_folder() -> Path:
    """The folder for tiktoken's downloads. tiktoken's own default is the temporary folder, which a reboot empties."""
    own = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    return Path(own or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiktoken")


def cached_files(name: str) -> dict[str, Path]:
    """An encoding's published files and where tiktoken's cache has them; empty if the encoding is unknown."""
    files = {}
    for path in FILES.get(name, ()):
        url = f"https://{HOST}/{path}"
        key = hashlib.sha1(url.encode()).hexdigest()  # as tiktoken.load names it
        files[PurePosixPath(path).name] = cache_folder() / key
    return files


def missing(name: str) -> list[str]:
    """An encoding's files that are not on this machine and cannot be fetched; empty if the encoding is unknown."""
    absent = [file for file, path in cached_files(name).items() if not path.exists()]
    return absent if absent and not is_reachable() else []


def keep(name: str, file: str, sha256: str, source: IO[bytes]) -> None:
    """Write one of an encoding's files into the cache, from `source`. VocabularyError for content with another
    checksum, as after a broken connection, and for a file that the encoding does not have."""
    path = cached_files(name).get(file)
    if path is None:
        raise VocabularyError(f"encoding {name}: has no file {file!r}")
    content = source.read()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise VocabularyError(f"encoding {name}: {file}: another checksum than {sha256}")

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_bytes(content)
    partial.replace(path)


def is_reachable() -> bool:
    """Whether HOST takes a connection within REACH_TIMEOUT."""
    try:
        socket.create_connection((HOST, 443), REACH_TIMEOUT).close()
    except OSError:
        return False
    return True


def read(path: Path, pattern: str = "") -> Vocabulary:
    """Read a rank file, or a tokenizer.json of Llama's kind, which has no pattern; `pattern` is a name of PATTERNS or a
    regular expression. VocabularyError."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise VocabularyError(f"{path}: {error.strerror}") from error
    if raw.lstrip()[:1] == b"{":
        from training.data import llama_vocabulary

        return llama_vocabulary.parse(raw, path)
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(raw.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:  # binascii.Error is one
            raise VocabularyError(f"{path}:{number}: not a token in base64 and its rank") from error
    if not ranks:
        raise VocabularyError(f"{path}: an empty rank file")
    unknown = (path.stem, "gpt2", max(ranks.values()) + 1)
    name, known, separator = PUBLISHED.get(hashlib.sha256(raw).hexdigest(), unknown)
    return checked(Vocabulary(name, ranks, complete(pattern or known), separator), str(path))


def complete(pattern: str) -> str:
    """Extend a pattern so that any other character is a word by itself: tiktoken drops text that does not match."""
    pattern = PATTERNS.get(pattern, pattern)
    return pattern if pattern in PATTERNS.values() or pattern.endswith(REST) else pattern + REST


def checked(vocabulary: Vocabulary, where: str) -> Vocabulary:
    """Return the vocabulary; VocabularyError unless it can encode and decode every text."""
    ranks = vocabulary.ranks
    if absent := [byte for byte in range(BYTES) if bytes([byte]) not in ranks]:
        raise VocabularyError(f"{where}: no token for byte {absent[0]:#04x}: not a byte-level vocabulary")
    numbers = set(ranks.values())
    if len(numbers) < len(ranks) or min(numbers) < 0 or max(numbers) >= 2**32 - 1:
        raise VocabularyError(f"{where}: ranks that are double, negative or beyond 32 bits")
    if vocabulary.separator in numbers or b"" in ranks:
        raise VocabularyError(f"{where}: an empty token, or one with the separator's number {vocabulary.separator}")
    return vocabulary


def train(texts: Iterable[str], size: int) -> Vocabulary:
    """Train a byte-level BPE of `size` tokens: the bytes, the merges learned from the texts, and the separator.
    VocabularyError if `size` is below SMALLEST, the text is too short, or the package tokenizers is missing."""
    if size < SMALLEST:
        raise VocabularyError(f"--train-vocab {size}: at least {SMALLEST} (every byte, one more token, the separator)")
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError as error:
        raise VocabularyError("--train-vocab needs the package tokenizers: pip install tokenizers") from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # GPT-2's pattern
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    ranks = {bytes([byte]): byte for byte in range(BYTES)}
    learned = tokenizer.get_vocab()
    for token in sorted(learned, key=learned.__getitem__):  # in the order of the merges
        ranks.setdefault(bytes(map(byte_of, token)), len(ranks))
    if len(ranks) < size - 1:
        raise VocabularyError(f"--train-vocab {size}: the text is too little for more than {len(ranks) + 1}")
    return checked(Vocabulary(f"bpe-{size}", ranks, PATTERNS["gpt2"], len(ranks)), f"--train-vocab {size}")


def byte_of(character: str) -> int:
    """The byte that `tokenizers` writes as this character: printable bytes as themselves, others as 256 and up."""
    code = ord(character)
    return code if code < BYTES else UNPRINTABLE[code - BYTES]


UNPRINTABLE = [*range(33), *range(127, 161), 173]


def main(argv: Sequence[str]) -> int:
    """Run the command of the first word; returns the exit code."""
    match argv:
        case ["missing", name]:
            print(json.dumps(missing(name)))
        case ["keep", name, file, sha256]:
            try:
                keep(name, file, sha256, sys.stdin.buffer)
            except (VocabularyError, OSError) as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
        case _:
            print("usage: missing NAME | keep NAME FILE SHA256", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
