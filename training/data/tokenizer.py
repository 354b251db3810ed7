"""Text to tokens and back, with the encoding that a token set's manifest names; and the engines that encode a corpus.

tiktoken defines the tokens; tokenizers those of Llama's kind of vocabulary. gigatoken makes the same ones as tiktoken
some 20 times as fast, but reimplements a few patterns by hand. So it is used only for those, and both encode a sample
of every corpus, drawn by the seed. If one token differs, prepare starts over with tiktoken: a finished set does not
depend on the engine, and its manifest does not name it.
"""

from __future__ import annotations

import codecs
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tiktoken

from training import manifest
from training.data import vocabulary
from training.data.llama_vocabulary import LlamaEncoding
from training.data.vocabulary import BYTES, PATTERNS, Encoding, Vocabulary, VocabularyError
from training.manifest import SEPARATOR

Array: TypeAlias = npt.NDArray[Any]

SLICE = 1 << 16  # characters
MARK = SEPARATOR.encode()
SCHEMES = {PATTERNS[name]: name for name in ("gpt2", "cl100k", "o200k")}  # pattern -> gigatoken's name for it
RENEW = 20
"""gigatoken caches every word without a limit (its issue 36). So it is loaded anew after each worker has encoded for
this many times as long as loading took, which bounds its memory at a cost of some 5 % of the time."""
RUN = 1 << 17
"""Characters of white space in a row. tiktoken fails at some 800,000, and `encode_part` then cuts the text, which
changes the tokens. A text with a run of this length is left to tiktoken, so that it is cut the same way."""


def load(encoding: Mapping[str, Any], folder: str | Path) -> Encoding:
    """The encoding of `manifest["encoding"]`, whose rank file, if it has one, is in `folder`. VocabularyError."""
    return vocabulary_of(encoding, folder).encoding()


def vocabulary_of(encoding: Mapping[str, Any], folder: str | Path) -> Vocabulary:
    """The vocabulary of `manifest["encoding"]`, likewise."""
    if "ranks" not in encoding:
        return vocabulary.named(encoding["name"])
    path = Path(folder) / encoding["ranks"]
    found = vocabulary.read(path, encoding["pattern"])
    if manifest.checksum(path) != encoding["sha256"]:
        raise VocabularyError(f"{path}: not the rank file that the tokens were made with")
    return replace(found, name=encoding["name"], separator=encoding["special"][SEPARATOR])


def separator(encoding: Encoding) -> int:
    """The token between documents."""
    return int(encoding.encode_single_token(SEPARATOR))


def prompt(encoding: Encoding, text: str) -> list[int]:
    """The tokens of a text that is to be continued, after what comes before a document's first token."""
    begin = encoding.begin if isinstance(encoding, LlamaEncoding) else separator(encoding)
    tokens = encode(encoding, text)
    return [begin, *tokens] if not tokens or isinstance(encoding, LlamaEncoding) else tokens


def encode(encoding: Encoding, text: str) -> list[int]:
    """The tokens of a text. A separator in the text is encoded as text."""
    return list(encode_part(encoding, text, set()).tolist())


def encode_part(encoding: Encoding, text: str, special: set[str]) -> Array:
    """The tokens of a text, uint32. A separator in it is one token if it is in `special`, else it is text."""
    try:
        return encoding.encode_to_numpy(text, allowed_special=special, disallowed_special=())
    except ValueError:  # nearly a million spaces in a row exceed a limit of the regex engine
        if len(text) <= SLICE:
            raise
    if special:  # split at the separators first
        end = np.array([separator(encoding)], dtype=np.uint32)
        parts = [array for part in text.split(SEPARATOR) for array in (encode_part(encoding, part, set()), end)][:-1]
    else:
        parts = [encode_part(encoding, text[at : at + SLICE], special) for at in range(0, len(text), SLICE)]
    return np.concatenate(parts)


def stream(encoding: Encoding, tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text as the tokens arrive. A character that spans several tokens is yielded with the last of them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        try:
            raw = encoding.decode_single_token_bytes(token)
        except KeyError:  # a model may have more outputs than the vocabulary has tokens
            raw = "\ufffd".encode()
        if piece := decoder.decode(raw):
            yield piece
    if rest := decoder.decode(b"", final=True):
        yield rest


def decode(encoding: Encoding, tokens: Iterable[int]) -> str:
    """The text of the tokens."""
    return "".join(stream(encoding, tokens))


class EngineError(Exception):
    """gigatoken cannot be used for this vocabulary or text, or differs from tiktoken; one line for the user."""


class TokenizerEngine:
    """Encodes batches of documents. A subclass has `encode_part` and a name with its version; threads may share one."""

    name: str

    def encode(self, texts: Sequence[tuple[bytes, bool]]) -> Array:
        """The tokens (uint32) of several (UTF-8 text, closes) in a row; a separator follows if `closes` is True.

        Documents are joined by the separator and encoded in one call, as a call for each short document costs more than
        the encoding; passages and texts that contain the separator are encoded by themselves."""
        waiting: list[bytes] = []
        arrays: list[Array] = []
        for text, closes in texts:
            if MARK in text or not closes or has_long_run(text):
                arrays += [self.encode_part(b"".join(waiting), True), self.encode_part(text, False)]
                waiting.clear()
            else:
                waiting.append(text)
            if closes:
                waiting.append(MARK)
        arrays.append(self.encode_part(b"".join(waiting), True))
        return np.concatenate(arrays)

    def encode_part(self, text: bytes, joined: bool) -> Array:
        """The tokens of documents with separators between them, or, unless `joined`, of a text that may contain one."""
        raise NotImplementedError


class Tiktoken(TokenizerEngine):
    """The reference, by which the tokens are defined: tiktoken, or the package tokenizers for Llama's kind of
    vocabulary."""

    name = f"tiktoken {tiktoken.__version__}"

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        if isinstance(encoding, LlamaEncoding):
            self.name = f"tokenizers {version('tokenizers')}"

    def encode_part(self, text: bytes, joined: bool) -> Array:
        return encode_part(self.encoding, text.decode(), {SEPARATOR} if joined else set())


class Gigatoken(TokenizerEngine):
    """gigatoken, for `workers` threads at once. `ranks` is the vocabulary's rank file; it is read at every reload.
    EngineError if the package is missing or cannot handle the vocabulary."""

    def __init__(self, vocabulary: Vocabulary, encoding: Encoding, ranks: Path, workers: int) -> None:
        scheme = SCHEMES.get(vocabulary.pattern)
        if scheme is None:
            raise EngineError("gigatoken does not know the vocabulary's pattern")
        if sorted(vocabulary.ranks.values()) != list(range(len(vocabulary.ranks))):
            raise EngineError("gigatoken needs ranks without a gap")
        if any(vocabulary.ranks[bytes([byte])] >= BYTES for byte in range(BYTES)):
            raise EngineError("gigatoken needs the single bytes at the ranks below 256")
        try:
            import gigatoken
        except ImportError as error:
            raise EngineError("the package gigatoken is not installed: pip install gigatoken") from error
        self.name = f"gigatoken {version('gigatoken')}"
        self.library: Any = gigatoken
        self.encoding = encoding
        load = gigatoken.Tokenizer.from_tiktoken
        self.joined = Renewed(lambda: load(ranks, scheme, {SEPARATOR: vocabulary.separator}), workers)
        self.plain = Renewed(lambda: load(ranks, scheme, {}), workers)
        self.tokens(self.joined, b"a")

    def encode_part(self, text: bytes, joined: bool) -> Array:
        if not joined and has_long_run(text):
            return encode_part(self.encoding, text.decode(), set())
        return self.tokens(self.joined if joined or MARK not in text else self.plain, text)

    def tokens(self, tokenizer: Renewed, text: bytes) -> Array:
        """The tokens of a text by `joined`, where the separator is one token, or by `plain`. EngineError if the library
        fails."""
        try:
            # A text of up to 2 MB is encoded on this thread. The padded call, for a matrix of one row, does not need
            # the package awkward.
            source = self.library.BytesSource(text)
            return tokenizer.run(lambda own: own.encode_batch_padded(source, 0, parallel=True)[0][0])
        except BaseException as error:  # a panic in its Rust code is not an Exception
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise EngineError(f"gigatoken failed: {(str(error).splitlines() or [''])[0]}") from error
            raise


class Renewed:
    """An object that grows with use and is made anew before it is large. Several threads may use it at once."""

    def __init__(self, make: Callable[[], Any], workers: int) -> None:
        self.make, self.workers = make, workers
        self.lock = threading.Lock()
        self.made: Any = None
        self.cost = self.used = 0.0  # seconds that making it took, and that all threads together have used it

    def run(self, use: Callable[[Any], Any]) -> Any:
        """What `use` returns for the object. Only making it anew locks others out; they go on with the one before."""
        with self.lock:
            if self.made is None or self.used > RENEW * self.workers * self.cost:
                began = time.monotonic()
                self.made, self.used = self.make(), 0.0
                self.cost = time.monotonic() - began
            own = self.made
        began = time.thread_time()
        result = use(own)
        with self.lock:
            self.used += time.thread_time() - began
        return result


def has_long_run(text: bytes) -> bool:
    """Whether the text has a long run of white space: found for sure from 2 * RUN characters on, never below RUN."""
    if len(text) < RUN:
        return False
    characters = text.decode()
    return any(characters[at : at + RUN].isspace() for at in range(0, len(characters) - RUN + 1, RUN))
