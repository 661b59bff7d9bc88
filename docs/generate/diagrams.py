"""Drawings of the record batch, the log, replication and the packages, as self-contained SVG files."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from fairlead_api.batch import header as batch_header

if TYPE_CHECKING:
    from collections.abc import Iterable

WIDTH = 760
LINE = 18
STYLE = (
    "text{font:13px sans-serif;fill:#222}.small{font-size:11px;fill:#555}rect{fill:#eef3fb;stroke:#4a6fa5}"
    ".b{fill:#e8f5ec;stroke:#3d8b57}.c{fill:#fdf3e3;stroke:#b8812b}.page{fill:#fff;stroke:none}"
    "path{stroke:#555;fill:none;marker-end:url(#tip)}"
)


@dataclass(frozen=True, slots=True)
class Box:
    """A box with lines of text, the first of which is larger; `kind` determines the colour."""

    x: int
    y: int
    width: int
    lines: tuple[str, ...]
    kind: str = ""

    @property
    def height(self) -> int:
        """Height of the box, which depends on the number of lines."""
        return 14 + LINE * len(self.lines)

    def drawn(self) -> str:
        """Return the box as SVG."""
        middle = self.x + self.width // 2
        kinds = ("", *[' class="small"'] * len(self.lines))
        texts = "".join(
            f'<text x="{middle}" y="{self.y + 20 + LINE * place}" text-anchor="middle"{kind}>{escape(line)}</text>'
            for place, (line, kind) in enumerate(zip(self.lines, kinds, strict=False))
        )
        place = f'x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}"'
        shape = f'<rect class="{self.kind}" {place} rx="4"/>'
        return shape + texts


def arrow(start: tuple[int, int], end: tuple[int, int], words: str = "") -> str:
    """Return an arrow as SVG, with a label at its middle."""
    middle = ((start[0] + end[0]) // 2, (start[1] + end[1]) // 2 - 5)
    line = f'<path d="M{start[0]} {start[1]} L{end[0]} {end[1]}"/>'
    text = f'<text class="small" x="{middle[0]}" y="{middle[1]}" text-anchor="middle">{escape(words)}</text>'
    return line + (text if words else "")


def picture(title: str, height: int, parts: Iterable[str]) -> str:
    """Return a whole drawing as SVG."""
    tip = (
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" style="fill:#555;stroke:none;marker-end:none"/></marker></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n"
        f'<style>{STYLE}</style>{tip}<rect class="page" width="{WIDTH}" height="{height}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def pages() -> dict[str, str]:
    """Return the text of each drawing by its path under docs/reference."""
    return {
        "diagrams/record-batch.svg": _record_batch(),
        "diagrams/log.svg": _log(),
        "diagrams/replication.svg": _replication(),
        "diagrams/rooms.svg": _rooms(),
    }


def _record_batch() -> str:
    header, stamped = batch_header.HEADER_BYTES, batch_header.STAMP_BYTES
    own = header - stamped
    return picture(
        "A record batch: the header, of which the leader stamps the first part, then one Arrow message",
        150,
        [
            Box(
                20,
                30,
                220,
                (f"the leader's: {stamped} bytes", "base offset, leader epoch,", "append time"),
                "c",
            ).drawn(),
            Box(
                240,
                30,
                200,
                (f"the producer's: {own} bytes", "checksum, counts, codec,", "producer id and sequence"),
            ).drawn(),
            Box(
                440,
                30,
                300,
                (
                    "one Arrow message",
                    "key, value, timestamp, headers",
                    "compressed or not; never re-encoded",
                ),
                "b",
            ).drawn(),
            f'<text class="small" x="20" y="130">byte 0</text><text class="small" x="440" y="130">byte {header}</text>',
        ],
    )


def _log() -> str:
    return picture(
        "The log of a partition: sealed segments, the active one, and the offsets that bound what can be read",
        230,
        [
            Box(20, 60, 190, ("sealed segment", "batches", "indexes by offset and time")).drawn(),
            Box(220, 60, 190, ("sealed segment", "batches", "indexes by offset and time")).drawn(),
            Box(
                420, 60, 320, ("active segment", "appended to; synced before", "it is acknowledged"), "b"
            ).drawn(),
            *(arrow((x, 170), (x, 132)) for x in (60, 580, 738)),
            '<text class="small" x="22" y="190">log start offset</text>',
            '<text class="small" x="535" y="190">high watermark</text>',
            '<text class="small" x="660" y="190">log end offset</text>',
            '<text class="small" x="22" y="212">advanced by retention</text>',
            '<text class="small" x="535" y="212">readers stop here</text>',
            '<text class="small" x="662" y="212">the next append</text>',
            '<text class="small" x="20" y="40">offsets increase from left to right, without gaps</text>',
        ],
    )


def _replication() -> str:
    return picture(
        "Replication: a producer sends to the leader, followers fetch, the producer is answered",
        260,
        [
            Box(20, 100, 120, ("producer", "acks=all")).drawn(),
            Box(290, 90, 180, ("leader", "appends, syncs,", "keeps the high watermark"), "c").drawn(),
            Box(590, 20, 150, ("follower", "in sync"), "b").drawn(),
            Box(590, 180, 150, ("follower", "in sync"), "b").drawn(),
            arrow((140, 115), (290, 115), "1 batch"),
            arrow((590, 45), (470, 105), "2 fetch from its end"),
            arrow((590, 205), (470, 145)),
            arrow((290, 145), (140, 145), "4 stored"),
            '<text class="small" x="20" y="215">3 a fetch reports what the follower has synced:</text>',
            '<text class="small" x="20" y="231">the lowest of these offsets is the high watermark</text>',
        ],
    )


def _rooms() -> str:
    return picture(
        "The packages: command line and SDK send HTTP to the server; pure packages decide, the runtime acts",
        320,
        [
            Box(20, 20, 200, ("client", "SDK, command line")).drawn(),
            Box(20, 130, 200, ("api", "the contract, pure"), "b").drawn(),
            Box(300, 20, 200, ("server", "HTTP, three listeners"), "c").drawn(),
            Box(300, 110, 200, ("runtime", "one task per partition"), "c").drawn(),
            Box(
                20,
                240,
                340,
                ("replication, producers, groups,", "controller, placement, registry: pure"),
                "b",
            ).drawn(),
            Box(400, 240, 110, ("log", "bytes"), "c").drawn(),
            Box(520, 240, 110, ("coordination", "small keys"), "c").drawn(),
            Box(640, 240, 110, ("peers", "other brokers"), "c").drawn(),
            arrow((220, 40), (300, 40), "HTTP/2"),
            arrow((120, 70), (120, 130)),
            arrow((300, 60), (220, 145)),
            arrow((400, 70), (400, 110)),
            arrow((340, 160), (240, 240), "event, effects"),
            arrow((430, 160), (450, 240)),
            arrow((460, 160), (575, 240)),
            arrow((490, 160), (690, 240)),
        ],
    )
