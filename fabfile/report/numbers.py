"""Numbers as a person would write them: 1.2 M, 3 m 20 s, $0.00."""

from __future__ import annotations

import datetime

_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k"))
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NOTHING = "\N{EN DASH}"
_TIMES, _MINUS = "\N{MULTIPLICATION SIGN}", "\N{MINUS SIGN}"


def count(value: float | None) -> str:
    """9,830 as it is; 98.3 k, 1.2 M, 9.0 B above."""
    if value is None:
        return NOTHING
    for size, unit in _UNITS:
        if abs(value) >= size * 0.9995:
            scaled = value / (1e3 if unit == "k" else size)
            return f"{scaled:.{0 if abs(scaled) >= 99.95 else 1}f} {unit}"
    return plain(value)


def size(value: float | None) -> str:
    """Bytes: 950 B, 12.3 MB, 4.0 GB."""
    if value is None:
        return NOTHING
    for bound, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= bound * 0.9995:
            return f"{value / bound:.1f} {unit}"
    return f"{value:.0f} B"


def plain(value: float | None) -> str:
    """Without decimals from 100 on, else with two; with commas: 12,345; 3.25; 0.71."""
    if value is None:
        return NOTHING
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else small(value)


def small(value: float | None) -> str:
    """Learning rates: 0.01, and powers of ten below."""
    if value is None:
        return NOTHING
    if value == 0 or abs(value) >= 0.00995:
        return f"{value:.3g}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    return f"{mantissa.removesuffix('.0')}{_TIMES}{power}"


def fixed(value: float | None) -> str:
    """Losses: 3.214."""
    return NOTHING if value is None else f"{value:.3f}"


def span(seconds: float | None) -> str:
    """1.2 ms, 0.42 s, 42 s, 3 m 20 s, 3 h 20 m, 2 d 4 h."""
    if seconds is None:
        return NOTHING
    if seconds < 0.0995:
        return f"{seconds * 1000:.2g} ms" if seconds > 0 else "0 s"
    if seconds < 59.5:
        return f"{seconds:.{2 if seconds < 1 else 1 if seconds < 10 else 0}f} s"
    rounded, minutes, hours = (round(seconds / unit) for unit in (1, 60, 3600))
    if rounded < 3600:
        return f"{rounded // 60} m {rounded % 60} s"
    return f"{minutes // 60} h {minutes % 60} m" if minutes < 48 * 60 else f"{hours // 24} d {hours % 24} h"


def money(dollars: float | None) -> str:
    """$1,234.50; "under $0.01" for less than half a cent."""
    if dollars is None:
        return "not known"
    return "under $0.01" if 0 < dollars < 0.005 else f"${dollars:,.2f}"


def percent(share: float | None) -> str:
    """71 %, 0.4 %, under 0.1 %."""
    if share is None:
        return NOTHING
    if 0 < share < 0.0005:
        return "under 0.1 %"
    return f"{share * 100:.{0 if share >= 0.0995 or share == 0 else 1}f} %"


def change(before: float | None, after: float | None) -> str:
    """From one to the other: +12 %, -3.4 %, 8.1 times."""
    if before is None or after is None or before <= 0 or after <= 0:
        return ""
    ratio, part = after / before, abs(after / before - 1)
    if ratio >= 2:
        return f"{_TIMES}{ratio:.3g}"
    return f"{'+' if ratio > 1 else _MINUS}{part * 100:.{0 if part >= 0.0995 else 1}f} %" if round(part, 4) else "same"


def moment(unix: float | None) -> str:
    """2025-11-21 09:08 UTC; an en dash for an impossible time."""
    if unix is None or not 0 <= unix < 1e11:
        return NOTHING
    return datetime.datetime.fromtimestamp(unix, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
