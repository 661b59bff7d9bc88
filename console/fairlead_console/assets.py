"""Styles, scripts and pictures of the console, which browsers may cache: the address of a file contains its hash."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from fastapi import APIRouter, HTTPException, Request, Response

FOLDER: Final = Path(__file__).parent / "static"
MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOREVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class _Asset:
    plain: bytes
    compressed: bytes
    media_type: str
    digest: str


class Assets:
    """All files, read and compressed once."""

    def __init__(self) -> None:
        self._files = {
            path.relative_to(FOLDER).as_posix(): _read(path)
            for path in sorted(FOLDER.rglob("*"))
            if path.suffix in MEDIA_TYPES
        }
        self.router = APIRouter()
        self.router.add_api_route("/static/{digest}/{name:path}", self._answer, methods=["GET", "HEAD"])

    @property
    def compressed_bytes(self) -> int:
        """Total size of the scripts and styles, as sent to browsers."""
        return sum(len(each.compressed) for each in self._files.values())

    def address(self, name: str) -> str:
        """Return the address of a file, which changes when the file changes."""
        return f"/static/{self._files[name].digest}/{name}"

    async def _answer(self, digest: str, name: str, request: Request) -> Response:
        found = self._files.get(name)
        if found is None or found.digest != digest:
            raise HTTPException(404)
        headers = {"Cache-Control": FOREVER, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(found.compressed, media_type=found.media_type, headers=headers)
        return Response(found.plain, media_type=found.media_type, headers=headers)


def _read(path: Path) -> _Asset:
    plain = path.read_bytes()
    digest = sha256(plain).hexdigest()[:16]
    return _Asset(plain, gzip.compress(plain, 9, mtime=0), MEDIA_TYPES[path.suffix], digest)
