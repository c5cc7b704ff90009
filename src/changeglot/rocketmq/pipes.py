"""What the source and the sink of a pipeline share."""

from __future__ import annotations

from collections.abc import Mapping

from changeglot.rocketmq.client import Client
from changeglot.rocketmq.options import Writing, given

#: The property by which a pipeline knows what another one has sent.
PROPERTY = "changeglot"
#: How long a look at the brokers may take, in seconds.
_PATIENCE = 10


def cluster(servers: str, access_key: str, secret_key: str) -> dict[str, str]:
    """Options of the data source that say where, and who asks."""
    return {"nameServers": servers, "accessKey": access_key, "secretKey": secret_key}


def looking(options: Mapping[str, str]) -> Client:
    """A client to look at the brokers with, by options of the data source."""
    return given(Writing, {**options, "timeout": str(_PATIENCE)}).client()
