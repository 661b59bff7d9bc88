"""Short texts of numbers, sizes, durations and times for people; pages show the exact value on hover. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup, escape

from fairlead_api.configuration import ConfigKey
from fairlead_api.configuration.keys import LONG_MAX

_DECIMAL: Final = ("", " k", " M", " G", " T", " P", " E")
_BINARY: Final = (" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB")
_DURATIONS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def short_number(value: float) -> str:
    """Return a number with three digits and a decimal prefix: 1234567 is `1.23 M`."""
    return _scaled(value, 1000, _DECIMAL)


def exact_number(value: float) -> str:
    """Return all digits of a number, in groups of three."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}".rstrip("0").rstrip(".")


def short_size(value: float) -> str:
    """Return a number of bytes with three digits and a binary prefix: 1536 is `1.5 KiB`."""
    return _scaled(value, 1024, _BINARY)


def short_duration(seconds: float) -> str:
    """Return a duration in its largest unit and the next smaller unit: 90061 s is `1 d 1 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    for place, (unit, name) in enumerate(_DURATIONS):
        whole, rest = divmod(int(seconds), unit)
        if whole:
            below = rest // _DURATIONS[place + 1][0] if place + 1 < len(_DURATIONS) else 0
            return f"{whole} {name}" + (f" {below} {_DURATIONS[place + 1][1]}" if below else "")
    return "0 s"


def utc(seconds: float) -> datetime:
    """Return a time in seconds since 1970 as a UTC time."""
    return datetime.fromtimestamp(seconds, UTC)


def utc_text(seconds: float) -> str:
    """Return a time in seconds since 1970 as text, for example `2026-11-27 00:06:01 UTC`."""
    return utc(seconds).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso_text(seconds: float) -> str:
    """Return a time in seconds since 1970 as RFC 3339."""
    return utc(seconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def retention_text(config: Mapping[str, Any]) -> str:
    """Return how long a topic keeps its records, from its settings."""
    if not config:
        return ""
    policy = config["cleanup.policy"].value
    kept = []
    if "delete" in policy:
        milliseconds, size = int(config["retention.ms"].value), int(config["retention.bytes"].value)
        if milliseconds >= 0:
            kept.append(short_duration(milliseconds / 1000))
        if size >= 0:
            kept.append(short_size(size))
        if not kept:
            kept.append("forever")
    if "compact" in policy:
        kept.append("compacted")
    return ", ".join(kept)


def silence_text(brokers: Iterable[int]) -> str:
    """Return the beginning of a sentence about brokers that do not answer."""
    ids = [str(each) for each in sorted(brokers)]
    return f"Broker {ids[0]} does not answer" if len(ids) == 1 else f"Brokers {', '.join(ids)} do not answer"


def setting_text(value: str, key: ConfigKey | None) -> Markup:
    """Return the value of a setting in a readable form, with the stored text on hover."""
    unit, text = ("", value) if key is None else (key.unit, value)
    if value.lstrip("-").isdecimal():
        number = int(value)
        if number >= LONG_MAX:
            text, unit = "no limit", ""
        elif unit == "ms" and number >= 1000:
            text, unit = short_duration(number / 1000), ""
        elif unit == "bytes" and number >= 1024:
            text, unit = short_size(number), ""
        elif number == -1 and unit:
            text, unit = "no limit", ""
    if text == value:
        return Markup("<code>{}</code>{}").format(value, f" {unit}" if unit else "")
    return Markup('<span class="n" title="{}">{}</span>').format(value, text)


def prose(text: str) -> Markup:
    """Return a text of the contract as HTML; words between backticks become code."""
    pieces = text.split("`")
    return Markup().join(
        Markup("<code>{}</code>").format(piece) if place % 2 else escape(piece)
        for place, piece in enumerate(pieces)
    )


def polyline(values: Sequence[float], width: int, height: int) -> str:
    """Return the points of a line through the values in a picture of this size, for a plot that needs no script."""
    if len(values) < 2:
        return ""
    top = max(values) or 1
    step = width / (len(values) - 1)
    return " ".join(
        f"{place * step:.1f},{height - value / top * (height - 2) - 1:.1f}"
        for place, value in enumerate(values)
    )


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    place, sign, left = 0, "-" if value < 0 else "", abs(value)
    while left >= base and place < len(units) - 1:
        left, place = left / base, place + 1
    digits = 0 if isinstance(value, int) and place == 0 else 2 if left < 10 else 1 if left < 100 else 0
    text = f"{left:.{digits}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{sign}{text}{units[place]}"


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "exact_number": exact_number,
    "iso_text": iso_text,
    "polyline": polyline,
    "prose": prose,
    "retention_text": retention_text,
    "setting_text": setting_text,
    "short_duration": short_duration,
    "short_number": short_number,
    "short_size": short_size,
    "silence_text": silence_text,
    "utc_text": utc_text,
}
