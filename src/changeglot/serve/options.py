"""What a person says of serving."""

from __future__ import annotations

from dataclasses import dataclass

from changeglot.options import option


@dataclass(frozen=True)
class Serve:
    """Tables of a lake over HTTP, in Electric's protocol."""

    host: str = option("address to listen on; 0.0.0.0: all of this machine", "127.0.0.1")
    port: int = option("port to listen on; 0: a free one", 3000)
    tables: tuple[str, ...] = option("tables of the sink that may be asked for, of those that the rules fill", ("*",))
    schema: str = option("schema of a table that is asked for without one", "public")
    secret: str = option(
        "what clients must give, as parameter `secret` or as bearer token; none: all may", "", shown=False
    )
    origins: str = option("web pages that may ask: one origin, or * for all", "*")
    page: bool = option("a page at / that shows the tables, and any of them as it changes", True)
    poll_seconds: int = option("how long a request waits for changes", 20)
    look_ms: int = option("how often it is looked for new versions of a table that somebody waits for", 50)
    snapshot_every: int = option("versions of a table after which new clients begin with newer rows", 100)
    keep_versions: int = option("versions that a client may follow from; behind them it begins anew", 10_000)
    chunk_bytes: int = option("size of an answer, about", 10_485_760)
    cache_mb: int = option("memory for rows of the tables", 512)
    disk_mb: int = option("disk for answers with rows, in the folder for temporary files", 1024)
    connections: int = option("requests at once, waiting ones too; beyond them: 503", 20_000)
    working: int = option("requests that read tables at once or wait to; beyond them: 503", 1_000)
    rate: int = option("requests of one address in a second; 0: any", 0)
    body_bytes: int = option("size of a request's body", 1_048_576)
    send_seconds: int = option("how long a client may take to ask, and to accept a part of an answer", 30)
