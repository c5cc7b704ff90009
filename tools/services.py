"""Real services on this machine, to be thrown away: `python tools/services.py up|down|status [kafka] [postgres] ...`.

They listen on loopback alone, need neither root nor Docker, and live in a folder of their own. Those started here stay
until `down`; those that a test starts die with it, however it dies:

    with Kafka.start(tmp_path) as kafka:
        ... kafka.address ...
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import socket
import struct
import sys
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyspark

from changeglot import jars
from changeglot.errors import ChangeglotError
from changeglot.throwaway.databases import MariaDB, Postgres
from changeglot.throwaway.service import Service, ServiceFailed, free, received

FOLDER = Path(__file__).parent.parent / ".services"


class Kafka(Service):
    """One Kafka broker that is its own controller. With a user there is a second listener, for SASL/PLAIN."""

    name = "kafka"
    usual = 9092
    versions = ("4.3.1",)

    @classmethod
    def ports(cls, port: int | None) -> dict[str, int]:
        """Clients', the controller's, and the one of clients with a password."""
        return {"main": free() if port is None else port, "controller": free(), "sasl": free()}

    @property
    def sasl_address(self) -> str:
        """What clients are told that have the user's name and password (SASL_PLAINTEXT, PLAIN)."""
        return f"127.0.0.1:{self.state['ports']['sasl']}"

    def prepare(self) -> None:
        """Its settings, and a folder that is formatted."""
        ports, protected = self.state["ports"], bool(self.state["user"])
        sasl = f"SASL://127.0.0.1:{ports['sasl']}"
        clients = ",".join([f"PLAINTEXT://127.0.0.1:{ports['main']}", *([sasl] if protected else [])])
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{ports['controller']}",
            "listeners": f"{clients},CONTROLLER://127.0.0.1:{ports['controller']}",
            "advertised.listeners": clients,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "num.partitions": "3",
            "auto.create.topics.enable": "true",
            "message.max.bytes": str(10 * 1024 * 1024),
            "replica.fetch.max.bytes": str(10 * 1024 * 1024),
            "group.initial.rebalance.delay.ms": "0",
            # One that was killed is let in again only when it has not been heard of for so long, else 9 seconds.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
        }
        if protected:
            login = f"org.apache.kafka.common.security.plain.PlainLoginModule required user_{self.state['user']}="
            properties["sasl.enabled.mechanisms"] = "PLAIN"
            properties["listener.name.sasl.plain.sasl.jaas.config"] = login + json.dumps(self.state["password"]) + ";"
        _write(self._properties, {**properties, **self.state["settings"]})
        if not (self.folder / "data" / "meta.properties").exists():
            # Its first letter is always the same: a dash would look like an option.
            cluster = base64.urlsafe_b64encode(b"c" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
            self._run(*self._jvm("kafka.tools.StorageTool", "format", "-t", cluster, "-c"), "format its folder")

    def command(self) -> tuple[list[str], dict[str, str]]:
        """The broker."""
        return self._jvm("kafka.Kafka")

    def answers(self) -> bool:
        """Whether its metadata name a broker that serves."""
        # Metadata, version 4, of no topic: https://kafka.apache.org/protocol#The_Messages_Metadata
        asked = struct.pack(">hhihib", 3, 4, 1, -1, 0, 0)
        with socket.create_connection(("127.0.0.1", self.state["ports"]["main"]), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(asked)) + asked)
            _, _, _, brokers = struct.unpack(">iiii", received(connection, 16))
        return bool(brokers >= 1)

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def _jvm(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        """A class of Kafka's; the file of settings is its last argument."""
        found = jars.resolve([f"org.apache.kafka:kafka_2.13:{self.version}", "org.slf4j:slf4j-simple:2.0.17"])
        # Spark's resolver leaves out Scala's library, since Spark has it.
        scala = (Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar")
        flags = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        logging = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        return [_java(), *flags, *logging, *arguments, str(self._properties)], _classpath([*found, *scala])


class RocketMQ(Service):
    """RocketMQ's name server, which clients are told of, and one broker, in one JVM. With a user, no other may in."""

    name = "rocketmq"
    usual = 9876
    versions = ("5.5.0",)

    @classmethod
    def ports(cls, port: int | None) -> dict[str, int]:
        """The name server's, and the broker's, which takes its neighbours too."""
        return {"main": free() if port is None else port, "broker": free(-2, 0, 1)}

    @property
    def broker(self) -> str:
        """The broker's address, which clients learn from the name server."""
        return f"127.0.0.1:{self.state['ports']['broker']}"

    @property
    def logs(self) -> list[Path]:
        """It writes its own besides."""
        return [self.log, *self.folder.glob("logs/*/broker.log"), *self.folder.glob("logs/*/store.log")]

    def prepare(self) -> None:
        """Settings of both, and the program that starts both."""
        ports, user, password = self.state["ports"], self.state["user"], self.state["password"]
        names = {
            "listenPort": str(ports["main"]),
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(self.folder / "names" / "kvConfig.json"),
            "configStorePath": str(self.folder / "names" / "namesrv.properties"),
        }
        broker = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": str(ports["broker"]),
            "namesrvAddr": self.address,
            "storePathRootDir": str(self.folder / "data"),
            "storePathCommitLog": str(self.folder / "data" / "commitlog"),
            "autoCreateTopicEnable": "true",
            "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
            "mappedFileSizeConsumeQueue": "600000",
        }
        if user:
            package = "org.apache.rocketmq.auth.authentication.provider"
            broker |= {
                "authenticationEnabled": "true",
                "authenticationProvider": f"{package}.DefaultAuthenticationProvider",
                "authenticationMetadataProvider": f"{package}.LocalAuthenticationMetadataProvider",
                # The user is made when the folder is new; the broker is a client of its own.
                "initAuthenticationUser": json.dumps({"username": user, "password": password}),
                "innerClientAuthenticationCredentials": json.dumps({"accessKey": user, "secretKey": password}),
            }
        _write(self.folder / "namesrv.conf", names)
        _write(self.folder / "broker.conf", {**broker, **self.state["settings"]})
        (self.folder / "Both.java").write_text(
            "import org.apache.rocketmq.broker.BrokerStartup;\n"
            "public class Both { public static void main(String[] a) throws Exception {\n"
            ' org.apache.rocketmq.namesrv.NamesrvStartup.main0(new String[]{"-c", a[0]});\n'
            ' var broker = BrokerStartup.start(BrokerStartup.createBrokerController(new String[]{"-c", a[1]}));\n'
            " // It waits for replicas on all interfaces, and there are none.\n"
            " broker.getMessageStore().getHaService().shutdown(); } }\n"
        )

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Both servers."""
        found = jars.resolve([f"org.apache.rocketmq:rocketmq-{part}:{self.version}" for part in ("namesrv", "broker")])
        opened = [
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
            "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
            "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
        ]
        flags = ["-Xmx768m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        # It writes its logs into the home folder, and nothing at all on a disk that is three quarters full.
        home = [f"-Duser.home={self.folder}", "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99"]
        files = [str(self.folder / name) for name in ("Both.java", "namesrv.conf", "broker.conf")]
        return [_java(), *flags, *opened, *home, *files], {**_classpath(found), "ROCKETMQ_HOME": str(self.folder)}

    def answers(self) -> bool:
        """Whether the name server knows the broker."""
        # GET_BROKER_CLUSTER_INFO
        _, body = asked(self.address, 106)
        return self.broker.encode() in body


SERVICES: dict[str, type[Service]] = {service.name: service for service in (Kafka, RocketMQ, Postgres, MariaDB)}
#: Those that are meant where none is named.
BROKERS = (Kafka.name, RocketMQ.name)


def asked(
    address: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
) -> tuple[dict[str, Any], bytes]:
    """What a server of RocketMQ answers to one request: header and body. Any: whatever JSON can say."""
    header = json.dumps(
        {"code": code, "language": "PYTHON", "version": 0, "opaque": 1, "flag": 0, "extFields": dict(fields or {})}
    ).encode()
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)
        length, header_length = struct.unpack(">ii", received(connection, 8))
        answer = received(connection, length - 4)
    told: dict[str, Any] = json.loads(answer[: header_length & 0xFFFFFF])
    return told, answer[header_length & 0xFFFFFF :]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise ServiceFailed("no Java was found; install a JDK, 17 or 21 (Debian: openjdk-17-jdk-headless)")
    return java


def _classpath(found: Sequence[Path]) -> dict[str, str]:
    return {"CLASSPATH": os.pathsep.join(map(str, found))}


def _write(file: Path, properties: Mapping[str, str]) -> None:
    # Java's property files have the escapes that JSON has.
    file.write_text("".join(f"{name}={json.dumps(value)[1:-1]}\n" for name, value in properties.items()))


def up(folder: Path, names: Sequence[str]) -> list[Service]:
    """Those of the folder, started if they do not run, at their usual ports if those are free; they stay."""

    def one(name: str) -> Service:
        kind = SERVICES[name]
        service = kind.found(folder)
        if service is None or not service.running:
            print(f"starting {name}; the first time it is fetched", file=sys.stderr)
            service = kind.start(folder, free(wanted=kind.usual), detached=True)
        return service

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, names))


def down(folder: Path, names: Sequence[str]) -> None:
    """Ends those of the folder and deletes what they held."""
    for name in names:
        service = SERVICES[name].found(folder)
        if service is not None:
            service.discard()
            shutil.rmtree(service.folder)
            print(f"{name} is gone")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("up", "down", "status"))
    meant = f"{', '.join(SERVICES)}; if none is named, {' and '.join(BROKERS)} and what else the folder has"
    parser.add_argument("names", nargs="*", metavar="service", help=meant)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where their data and logs are (.services)")
    parser.add_argument("--json", action="store_true", help="say it for a program")
    given = parser.parse_args()
    unknown = set(given.names) - set(SERVICES)
    if unknown:
        parser.error(f"no service is called {', '.join(sorted(unknown))}; there are {', '.join(SERVICES)}")
    names = given.names or [name for name in SERVICES if name in BROKERS or SERVICES[name].found(given.folder)]
    try:
        if given.do == "down":
            down(given.folder, names)
            return 0
        if given.do == "up":
            up(given.folder, names)
    except ChangeglotError as error:
        print(error, file=sys.stderr)
        return 1
    found = [SERVICES[name].found(given.folder) for name in names]
    running = [service for service in found if service is not None and service.running]
    if given.json:
        told = {each.name: {"address": each.address, "pid": each.pid, "folder": str(each.folder)} for each in running}
        print(json.dumps(told))
    elif running:
        print("export " + " ".join(f"{each.name.upper()}={each.address}" for each in running))
    else:
        print("none is running", file=sys.stderr)
    return 0 if len(running) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
