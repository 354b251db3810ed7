"""HTML by construction: whatever is not markup already is escaped, so nothing that a user or a node says can be any."""

from __future__ import annotations

import html
import unicodedata


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def escaped(text: object) -> Markup:
    """Text for HTML. Characters that would change how others are shown, or that no file can hold, show as �."""
    shown = "".join(char if char in "\n\t" or not _hidden(char) else "\ufffd" for char in str(text))
    return Markup(html.escape(shown, quote=True))


_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def _hidden(char: str) -> bool:
    """Control characters, lone surrogates, and the ones that turn the direction of the text around."""
    return unicodedata.category(char) in ("Cc", "Cs") or char in _TURNING


def join(parts: object, separator: str = "") -> Markup:
    """Parts one after the other; None and "" are left out."""
    assert isinstance(parts, list | tuple)
    whole = [part if isinstance(part, Markup) else escaped(part) for part in parts if part is not None and part != ""]
    return Markup(separator.join(whole))


def element(name: str, *children: object, **attributes: object) -> Markup:
    """`element("td", text, class_="number")`; an attribute of None is left out, `_` in its name is `-`."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{''.join(given)}>{join(children)}</{name}>")


def table(heading: list[object], rows: list[list[object]], class_: str = "") -> Markup:
    """The first cell of a row is its heading."""
    head = element("tr", *(element("th", cell, scope="col") for cell in heading))
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    ]
    whole = element("table", element("thead", head) if any(heading) else "", element("tbody", *body))
    return element("div", whole, class_=f"table {class_}".strip())  # scrolls by itself where the screen is narrow
