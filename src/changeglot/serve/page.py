"""The live page: its files, and what browsers are told of them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from changeglot.serve.answers import Answer

_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS: Final = {
    "cache-control": "no-cache",
    # Nothing but what this server sends; values of rows are texts, and no text can be a script.
    "content-security-policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
#: What is at / without a page: as with Electric, nothing.
NO_PAGE: Final = {"/": Answer(200, b"", {"cache-control": "no-cache"}, "text/plain")}


def page() -> dict[str, Answer]:
    """The answers that are the page, by path."""
    found = {}
    for ending, kind in _TYPES.items():
        file = Path(__file__).with_suffix(ending)
        content = file.read_bytes()
        tag = {"etag": f'"{hashlib.sha256(content).hexdigest()[:16]}"'}
        found["/" if ending == ".html" else f"/{file.name}"] = Answer(200, content, {**_HEADERS, **tag}, kind)
    return found
