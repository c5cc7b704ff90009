"""Real services on this machine, to be thrown away: `python tools/services.py up|down|status [kafka] [rocketmq]`.

They listen on loopback alone, need neither root nor Docker, and live in a folder of their own. Those started here stay
until `down`; those that a test starts die with it, however it dies:

    with Kafka.start(tmp_path) as kafka:
        ... kafka.address ...
"""

from __future__ import annotations

import argparse
import atexit
import base64
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import pyspark

from changeglot import jars
from changeglot.errors import ChangeglotError

FOLDER = Path(__file__).parent.parent / ".services"
#: Seconds in which a service that is well has started, or ended, on a machine that is busy.
PATIENCE = 120
#: Below those that the system gives to clients: a client that knocks at a dead service's port may be given just that.
PORTS = range(20000, 32000)

#: Becomes what its arguments say, after asking the kernel to be killed when its parent, the first of them, is gone.
_GUARD = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class ServiceFailed(Exception):
    """A service did not start, end or answer; what it said last is in the message."""


class Service(ABC):
    """One process that serves, its folder and its ports."""

    name: ClassVar[str]
    #: Where its users expect it.
    usual: ClassVar[int]

    def __init__(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Its folder, and what `service.json` in it says. Any: numbers and texts."""
        self.folder = folder
        self.state = dict(state)
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        folder: Path,
        port: int | None = None,
        *,
        user: str = "",
        password: str = "",
        settings: Mapping[str, str] | None = None,
        detached: bool = False,
    ) -> Self:
        """Starts one in a folder below this one, on what an earlier one left there, and waits until it answers.

        Without a port it takes a free one. `settings` go over those in the service's own file. Unless `detached`, it
        is killed when the thread that started it is gone.
        """
        folder = folder.absolute() / cls.name
        old = cls.found(folder.parent)
        if old is not None and old.running:
            raise ServiceFailed(f"{cls.name} already runs in {folder}, at {old.address}")
        folder.mkdir(parents=True, exist_ok=True)
        state = {"ports": cls.ports(port), "user": user, "password": password, "settings": dict(settings or {})}
        service = cls(folder, {**state, "detached": detached})
        service._launch()
        return service

    @classmethod
    def found(cls, folder: Path) -> Self | None:
        """The one that was started in the folder, running or not, by whichever process."""
        folder = folder.absolute() / cls.name
        try:
            return cls(folder, json.loads((folder / "service.json").read_bytes()))
        except FileNotFoundError:
            return None

    @property
    def address(self) -> str:
        """What clients are told."""
        return f"127.0.0.1:{self.state['ports']['main']}"

    @property
    def pid(self) -> int:
        """Of the process that serves, or did."""
        pid: int = self.state["pid"]
        return pid

    @property
    def log(self) -> Path:
        """What the process says."""
        return self.folder / "log"

    @property
    def running(self) -> bool:
        """Whether the process is there. One of the same number that is another's is not it."""
        if self._process is not None:
            return self._process.poll() is None
        return "pid" in self.state and str(self.folder) in _command(self.pid)

    def stop(self) -> None:
        """Ends it in good order; if it does not, kills it."""
        if self._end(signal.SIGTERM):
            return
        self.kill()

    def kill(self) -> None:
        """Kills it as a power cut would (kill -9)."""
        if not self._end(signal.SIGKILL):
            raise ServiceFailed(f"{self.name}, process {self.pid}, does not even die when killed")

    def restart(self) -> None:
        """Starts it again, on the same ports and with its data; if it runs, it is stopped before."""
        self.stop()
        self._launch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Nobody needs it any more, and RocketMQ takes a quarter of a minute to end in good order.
        self.kill()

    @classmethod
    @abstractmethod
    def ports(cls, port: int | None) -> dict[str, int]:
        """Those it needs, free ones, by name; `main` is the one asked for."""

    @abstractmethod
    def prepare(self) -> None:
        """Writes what the process reads."""

    @abstractmethod
    def command(self) -> tuple[list[str], dict[str, str]]:
        """Arguments of java, in which the folder is named, and the environment that goes over this one."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it does its work, not only listens. OSError: it does not even listen."""

    def _launch(self) -> None:
        self.prepare()
        arguments, environment = self.command()
        command = [_java(), *arguments]
        guarded = not self.state["detached"]
        if guarded and sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), *command]
        elif guarded:
            atexit.register(self.kill)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self.state["pid"] = self._process.pid
            (self.folder / "service.json").write_text(json.dumps(self.state, indent=1))
            self._until(self._serves, "started")
        except BaseException:
            self.kill()
            raise

    def _serves(self) -> bool:
        if not self.running:
            raise ServiceFailed(f"{self.name} ended instead of starting{self._said()}")
        try:
            return self.answers()
        except OSError:
            return False

    def _until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > deadline:
                raise ServiceFailed(f"{self.name} has not {what} within {PATIENCE} seconds{self._said()}")
            time.sleep(0.05)

    def _end(self, how: signal.Signals) -> bool:
        """Whether it has ended."""
        if self.running:
            os.kill(self.pid, how)
            try:
                self._until(lambda: not self.running, "ended")
            except ServiceFailed:
                return False
        return True

    def _said(self) -> str:
        """The last lines of its logs."""
        parts = []
        # RocketMQ writes its own besides.
        for log in (self.log, *self.folder.glob("logs/*/broker.log"), *self.folder.glob("logs/*/store.log")):
            lines = log.read_text("utf-8", "replace").splitlines()[-25:] if log.exists() else []
            if lines:
                parts.append("\n".join((f"; the end of {log}:", *lines)))
        return "\n".join(parts) or f"; it left nothing in {self.log}"


class Kafka(Service):
    """One Kafka broker that is its own controller. With a user there is a second listener, for SASL/PLAIN."""

    name = "kafka"
    usual = 9092

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
            arguments, environment = self._jvm("kafka.tools.StorageTool", "format", "-t", cluster, "-c")
            with self.log.open("ab") as log:
                done = subprocess.run(
                    [_java(), *arguments],
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=PATIENCE,
                    check=False,
                )
            if done.returncode:
                raise ServiceFailed(f"kafka could not format its folder{self._said()}")

    def command(self) -> tuple[list[str], dict[str, str]]:
        """The broker."""
        return self._jvm("kafka.Kafka")

    def answers(self) -> bool:
        """Whether its metadata name a broker that serves."""
        # Metadata, version 4, of no topic: https://kafka.apache.org/protocol#The_Messages_Metadata
        asked = struct.pack(">hhihib", 3, 4, 1, -1, 0, 0)
        with socket.create_connection(("127.0.0.1", self.state["ports"]["main"]), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(asked)) + asked)
            _, _, _, brokers = struct.unpack(">iiii", _received(connection, 16))
        return bool(brokers >= 1)

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def _jvm(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        """A class of Kafka's; the file of settings is its last argument."""
        found = jars.resolve(["org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:2.0.17"])
        # Spark's resolver leaves out Scala's library, since Spark has it.
        scala = (Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar")
        flags = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        logging = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        return [*flags, *logging, *arguments, str(self._properties)], _classpath([*found, *scala])


class RocketMQ(Service):
    """RocketMQ's name server, which clients are told of, and one broker, in one JVM. With a user, no other may in."""

    name = "rocketmq"
    usual = 9876

    @classmethod
    def ports(cls, port: int | None) -> dict[str, int]:
        """The name server's, and the broker's, which takes its neighbours too."""
        return {"main": free() if port is None else port, "broker": free(-2, 0, 1)}

    @property
    def broker(self) -> str:
        """The broker's address, which clients learn from the name server."""
        return f"127.0.0.1:{self.state['ports']['broker']}"

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
        found = jars.resolve(
            ["org.apache.rocketmq:rocketmq-namesrv:5.5.0", "org.apache.rocketmq:rocketmq-broker:5.5.0"]
        )
        opened = [
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
            "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
            "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
        ]
        flags = ["-Xmx768m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        # It writes its logs into the home folder, and nothing at all on a disk that is three quarters full.
        home = [f"-Duser.home={self.folder}", "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99"]
        files = [str(self.folder / name) for name in ("Both.java", "namesrv.conf", "broker.conf")]
        return [*flags, *opened, *home, *files], {**_classpath(found), "ROCKETMQ_HOME": str(self.folder)}

    def answers(self) -> bool:
        """Whether the name server knows the broker."""
        # GET_BROKER_CLUSTER_INFO
        _, body = asked(self.address, 106)
        return self.broker.encode() in body


SERVICES: dict[str, type[Service]] = {service.name: service for service in (Kafka, RocketMQ)}


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
        length, header_length = struct.unpack(">ii", _received(connection, 8))
        answer = _received(connection, length - 4)
    told: dict[str, Any] = json.loads(answer[: header_length & 0xFFFFFF])
    return told, answer[header_length & 0xFFFFFF :]


def free(*around: int, wanted: int | None = None) -> int:
    """A port that nobody listens at, nor at those so far from it; the wanted one if it can be."""
    tried = [*([wanted] if wanted else []), *random.sample(PORTS, 1000)]
    for port in tried:
        if all(_is_free(port + distance) for distance in around or (0,)):
            return port
    raise ServiceFailed(f"none of {len(tried)} ports of this machine is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Connections of one that just ended do not count; for Java neither.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the service hung up")
        data += part
    return data


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


def _command(pid: int) -> str:
    """The command of a process; empty if there is none, or only what is left of it until its parent asks."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            return ""
    return subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True).stdout


def up(folder: Path, names: Sequence[str]) -> list[Service]:
    """Those of the folder, started if they do not run, at their usual ports if those are free; they stay."""

    def one(name: str) -> Service:
        kind = SERVICES[name]
        service = kind.found(folder)
        if service is None or not service.running:
            print(f"starting {name}; the first time its jars are fetched", file=sys.stderr)
            service = kind.start(folder, free(wanted=kind.usual), detached=True)
        return service

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, names))


def down(folder: Path, names: Sequence[str]) -> None:
    """Ends those of the folder and deletes what they held."""
    for name in names:
        service = SERVICES[name].found(folder)
        if service is not None:
            service.kill()
            shutil.rmtree(service.folder)
            print(f"{name} is gone")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("up", "down", "status"))
    parser.add_argument("names", nargs="*", metavar="service", help=f"{' or '.join(SERVICES)}; all if none is named")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where their data and logs are (.services)")
    parser.add_argument("--json", action="store_true", help="say it for a program")
    given = parser.parse_args()
    unknown = set(given.names) - set(SERVICES)
    if unknown:
        parser.error(f"no service is called {', '.join(sorted(unknown))}; there are {', '.join(SERVICES)}")
    names = given.names or list(SERVICES)
    try:
        if given.do == "down":
            down(given.folder, names)
            return 0
        if given.do == "up":
            up(given.folder, names)
    except (ServiceFailed, ChangeglotError) as error:
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
