"""Where changes go."""

from __future__ import annotations

from changeglot.sinks.base import LakeSink
from changeglot.sinks.delta import Delta
from changeglot.sinks.files import Files
from changeglot.sinks.iceberg import Iceberg
from changeglot.sinks.kafka import Kafka
from changeglot.sinks.messages import MessageSink
from changeglot.sinks.rocketmq import RocketMQ

#: Tables.
LAKES: dict[str, type[LakeSink]] = {"delta": Delta, "iceberg": Iceberg}
#: Messages.
TRANSPORTS: dict[str, type[MessageSink]] = {"kafka": Kafka, "rocketmq": RocketMQ, "files": Files}
SINKS: dict[str, type[LakeSink] | type[MessageSink]] = {**LAKES, **TRANSPORTS}
