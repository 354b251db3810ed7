"""tiktoken's published vocabulary files: their addresses and checksums.

They are those of tiktoken_ext.openai_public in tiktoken 0.14, and a test compares them. This machine
fetches nothing for a node but what is listed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

HOST = "openaipublic.blob.core.windows.net"


@dataclass(frozen=True)
class PublishedFile:
    """A file of a vocabulary."""

    path: str  # on HOST
    sha256: str

    @property
    def name(self) -> str:
        """How the head calls it (training/data/vocabulary.py)."""
        return PurePosixPath(self.path).name

    @property
    def url(self) -> str:
        """Where it is fetched from."""
        return f"https://{HOST}/{self.path}"


FILES = {
    "gpt2": (
        PublishedFile(
            "gpt-2/encodings/main/vocab.bpe", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
        ),
        PublishedFile(
            "gpt-2/encodings/main/encoder.json", "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
        ),
    ),
    "r50k_base": (
        PublishedFile(
            "encodings/r50k_base.tiktoken", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
        ),
    ),
    "p50k_base": (
        PublishedFile(
            "encodings/p50k_base.tiktoken", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"
        ),
    ),
    "cl100k_base": (
        PublishedFile(
            "encodings/cl100k_base.tiktoken", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
        ),
    ),
    "o200k_base": (
        PublishedFile(
            "encodings/o200k_base.tiktoken", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
        ),
    ),
}
"""By the encoding's name."""
