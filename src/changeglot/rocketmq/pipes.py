"""What the source and the sink of a pipeline share."""

from __future__ import annotations

from dataclasses import dataclass

from changeglot.options import option
from changeglot.rocketmq.client import Client
from changeglot.rocketmq.options import Writing, given

#: The property by which a pipeline knows what another one has sent.
PROPERTY = "changeglot"
#: How long a look at the brokers may take, in seconds.
_PATIENCE = 10


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where the brokers are, and who asks."""

    servers: str = option("name servers, with commas", example="localhost:9876")
    access_key: str = option("name of the user, if the brokers ask for one", "")
    secret_key: str = option("what the user proves itself by; not shown", "", shown=False)

    @property
    def cluster(self) -> dict[str, str]:
        """The same as options of the data source."""
        return {"nameServers": self.servers, "accessKey": self.access_key, "secretKey": self.secret_key}

    def looking(self) -> Client:
        """A client to look at the brokers with."""
        return given(Writing, {**self.cluster, "timeout": str(_PATIENCE)}).client()
