"""The types of the inventory's fields: which texts and numbers each may have, and objects made of fields that have been
checked. Imports only the standard library."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


class InventoryError(ValueError):
    """An inventory cannot be used. The message is one line: where, and what is allowed."""


@dataclass(frozen=True)
class TextForm:
    """The allowed form of a text; a field whose default is empty may also be empty.

    Texts end up in shell commands, SSH configurations and paths, maybe on a colleague's machine, so no form allows line
    ends, quotes or a leading dash.
    """

    allowed: str
    """For the message: "must be ..."."""
    pattern: str
    """Regular expression for the whole text."""
    check: Callable[[str], bool] = bool
    """A check beyond the pattern."""

    def fits(self, text: str) -> bool:
        """Whether the whole text matches the pattern and passes the check."""
        return re.fullmatch(self.pattern, text) is not None and self.check(text)


@dataclass(frozen=True)
class Span:
    """The range of a number, both ends included."""

    least: int
    most: int


_HOST = r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}"
_USER = r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,63}"
_SIX = r"[0-9A-Fa-f]*:[0-9A-Fa-f.:]+"
_PLAIN_PATH = r"(/(?!\.\.?(/|$))[A-Za-z0-9._@=+-]+)+/?"
_JUMP = re.compile(
    rf"((?P<user>{_USER})@)?((?P<six>{_SIX})|(\[(?P<bracketed>{_SIX})\]|(?P<host>{_HOST}))(:(?P<port>[0-9]{{1,5}}))?)"
)


def split_jump_host(text: str) -> tuple[str, str, int] | None:
    """(user, address, port) of `[user@]host[:port]`; the user is "" if missing. An IPv6 address with a port must be in
    brackets. None for text of another form."""
    match = _JUMP.fullmatch(text)
    if match is None:
        return None
    six, port = match["six"] or match["bracketed"], int(match["port"] or 22)
    if (six and not _is_address(six)) or not 1 <= port <= 65535:
        return None
    return match["user"] or "", six or match["host"], port


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_local_path(text: str) -> bool:
    return not any(unicodedata.category(character)[0] == "C" or character in "\u2028\u2029" for character in text)


Address = Annotated[str, TextForm("an IP address", r"[0-9A-Fa-f.:]+", _is_address)]
_BUCKET = rf"(s3|abfs)://[A-Za-z0-9][A-Za-z0-9._@-]*({_PLAIN_PATH})?/?|file://{_PLAIN_PATH}"
_BUCKET_FORM = "s3://BUCKET, abfs://CONTAINER@ACCOUNT or file:///FOLDER, with folders of letters, digits and '._@=+-'"
Bucket = Annotated[str, TextForm(_BUCKET_FORM, _BUCKET)]
CertificateData = Annotated[str, TextForm("a certificate as base64", r"[A-Za-z0-9+/]{1,16384}={0,2}")]
ClusterName = Annotated[str, TextForm("at most 63 letters, digits and '._-'", r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")]
Count = Annotated[int, Span(1, 1024)]
Devices = Annotated[int, Span(0, 64)]
GpuArchitecture = Annotated[str, TextForm("an architecture such as sm_70", r"sm_[0-9]{2,3}a?")]
HostKey = Annotated[
    str,
    TextForm("'TYPE BASE64', the public half of a host key", r"(ssh|ecdsa)-[a-z0-9-]{1,40} [A-Za-z0-9+/=]{1,16000}"),
]
HostName = Annotated[str, TextForm("a host name (a-z, 0-9 and '-')", r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")]
HostOrAddress = Annotated[
    str,
    TextForm("a host name or an IP address without zone", rf"{_HOST}|{_SIX}", lambda t: ":" not in t or _is_address(t)),
]
Image = Annotated[
    str, TextForm("an image's name: letters, digits and '._/:@-'", r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
]
Endpoint = Annotated[
    str, TextForm("https://HOST[:PORT]", rf"https://({_HOST}|\[{_SIX}\])(:[0-9]{{1,5}})?/?", lambda t: len(t) < 512)
]
Interface = Annotated[str, TextForm("a network interface's name", r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,14}")]
_JUMP_FORM = "[user@]host[:port], an IPv6 address with a port in brackets"
JumpHost = Annotated[str, TextForm(_JUMP_FORM, ".+", lambda text: split_jump_host(text) is not None)]
_PATH_FORM = "a path of at most 1024 characters that can be seen, without '\"', '`', '$' and backslashes"
LocalPath = Annotated[str, TextForm(_PATH_FORM, r"[^\"`\\$-][^\"`\\$]{0,1023}", _is_local_path)]
Amount = Annotated[float, Span(0, 10**6)]
SharedPath = Annotated[str, TextForm("an absolute path of letters, digits and '._@=+-'", _PLAIN_PATH)]
SharedPaths = Annotated[
    str,
    TextForm(
        "absolute paths of letters, digits and '._@=+-', separated by ','",
        rf"{_PLAIN_PATH}(,{_PLAIN_PATH})*",
    ),
]
UserName = Annotated[str, TextForm("a user's name: letters, digits and '._@+-'", _USER)]


def mismatch(value: object, hint: Any) -> str:
    """What a field's value must be, if it is not that; else "". TypeError: the field's type has no form (a bug)."""
    if get_origin(hint) is Literal:
        words = get_args(hint)
        return "" if value in words else " or ".join(map(repr, words))
    if get_origin(hint) is not Annotated:
        raise TypeError(f"{hint}: a field of the inventory needs a TextForm or a Span")
    kind, rule = get_args(hint)
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        return {str: "text", int: "a whole number", float: "a number"}[kind]
    if isinstance(rule, TextForm):
        return "" if rule.fits(str(value)) else rule.allowed
    assert isinstance(rule, Span) and isinstance(value, (int, float))
    return "" if rule.least <= value <= rule.most else f"from {rule.least} to {rule.most}"


def build(cls: type[T], raw: Mapping[str, Any], where: str, checked: Collection[object] = ()) -> T:
    """Make a dataclass from a JSON object; InventoryError, which begins with `where`, for an unknown or missing key or
    a value that does not fit. `checked`: types of fields whose values were made from checked ones."""
    hints = get_type_hints(cls, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key, value in raw.items():
        if key not in fields:
            raise InventoryError(f"{where}: unknown key {key!r}; known: {', '.join(fields)}")
        fits = hints[key] in checked or value == "" == fields[key].default
        if allowed := "" if fits else mismatch(value, hints[key]):
            text = repr(value)
            text = text if len(text) < 100 else text[:96] + "..."
            raise InventoryError(f"{where}: {key} = {text}: must be {allowed}")
    if missing := [key for key, field in fields.items() if field.default is dataclasses.MISSING and key not in raw]:
        raise InventoryError(f"{where}: {missing[0]} is missing")
    return cls(**raw)
