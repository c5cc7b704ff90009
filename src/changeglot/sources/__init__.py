"""Where messages come from."""

from __future__ import annotations

from changeglot.sources.base import MessageSource
from changeglot.sources.electric import Electric
from changeglot.sources.files import Files
from changeglot.sources.kafka import Kafka
from changeglot.sources.mysql import MySQL
from changeglot.sources.postgres import Postgres
from changeglot.sources.rocketmq import RocketMQ

SOURCES: dict[str, type[MessageSource]] = {
    "files": Files,
    "kafka": Kafka,
    "rocketmq": RocketMQ,
    "postgres": Postgres,
    "mysql": MySQL,
    "electric": Electric,
}
