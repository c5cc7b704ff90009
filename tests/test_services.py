"""The services that other tests are run against: they start, answer, keep their data and leave nothing behind."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from services import Kafka, RocketMQ, asked

from changeglot import jars
from changeglot.errors import MissingError
from changeglot.throwaway.databases import Database, MariaDB, Postgres
from changeglot.throwaway.service import Service, ServiceFailed, free

#: RocketMQ's requests and answers: https://rocketmq.apache.org, RequestCode and ResponseCode.
SEND, CREATE_TOPIC, MAX_OFFSET, ROUTE = 310, 17, 30, 105
DONE, NO_PERMISSION, TOPIC_UNKNOWN = 0, 16, 17


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with Kafka.start(tmp_path_factory.mktemp("services"), user="ann", password='pass "word\\') as service:
        yield service


@pytest.fixture(scope="module")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    with RocketMQ.start(tmp_path_factory.mktemp("services"), user="ann", password="secret-1") as service:
        yield service


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres.start(tmp_path_factory.mktemp("services"), user="ann", password="pass 'word\\") as service:
        yield service


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    with MariaDB.start(tmp_path_factory.mktemp("services"), password="pass 'word\\") as service:
        yield service


@pytest.fixture(params=["postgres", "mariadb"])
def database(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found


def send(address: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": address, "message.max.bytes": 9_000_000})
    failed: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(60) == 0
    assert not failed


def stored(address: str, topic: str, count: int) -> list[bytes]:
    """So many values of a topic, whichever partition they are in."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "tests", "fetch.message.max.bytes": 9_000_000})
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        messages = consumer.consume(count, timeout=60)
        values = [message.value() for message in messages if message.error() is None]
    finally:
        consumer.close()
    return sorted(value for value in values if value is not None)


def test_kafka_keeps_its_messages_when_it_is_killed(kafka: Kafka) -> None:
    large = b"x" * 5_000_000
    send(kafka.address, "kept", b"a", b"b", large)
    address, pid = kafka.address, kafka.pid
    kafka.kill()
    assert not kafka.running
    kafka.restart()
    assert (kafka.address, kafka.running) == (address, True)
    assert kafka.pid != pid
    send(kafka.address, "kept", b"c")
    assert stored(kafka.address, "kept", 4) == [b"a", b"b", b"c", large]
    assert (
        len(AdminClient({"bootstrap.servers": address}).list_topics("kept", timeout=30).topics["kept"].partitions) == 3
    )


def test_kafka_has_transactions(kafka: Kafka) -> None:
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": "one"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("transacted", b"a")
    producer.commit_transaction(60)
    assert stored(kafka.address, "transacted", 1) == [b"a"]


def test_kafka_asks_for_the_password_at_its_second_address(kafka: Kafka) -> None:
    def client(password: str, errors: list[int]) -> AdminClient:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "ann"}
        # Any: texts, and a function.
        settings: dict[str, Any] = {"bootstrap.servers": kafka.sasl_address, **login, "sasl.password": password}
        settings["error_cb"] = lambda error: errors.append(error.code())
        return AdminClient(settings)

    errors: list[int] = []
    assert len(client('pass "word\\', errors).list_topics(timeout=30).brokers) == 1
    assert errors == []
    refused = client("wrong", errors)
    deadline = time.monotonic() + 30
    while not errors and time.monotonic() < deadline:
        refused.poll(0.1)
    assert KafkaError._AUTHENTICATION in errors


def signed(fields: dict[str, str], body: bytes = b"", *, password: str) -> dict[str, str]:
    """The fields of a request as a client with a password sends them."""
    fields = {**fields, "AccessKey": "ann"}
    text = "".join(fields[name] for name in sorted(fields)).encode() + body
    signature = base64.b64encode(hmac.digest(password.encode(), text, hashlib.sha1)).decode()
    return {**fields, "Signature": signature}


def offset(rocketmq: RocketMQ, topic: str, *, password: str = "secret-1") -> tuple[int, str | None]:
    """Status of the answer, and how many messages have been in the topic's first queue."""
    header, _ = asked(rocketmq.broker, MAX_OFFSET, signed({"topic": topic, "queueId": "0"}, password=password))
    return header["code"], (header.get("extFields") or {}).get("offset")


def test_rocketmq_keeps_its_messages_when_it_is_killed(rocketmq: RocketMQ) -> None:
    create = {"topic": "kept", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    create |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    assert asked(rocketmq.broker, CREATE_TOPIC, signed(create, password="secret-1"))[0]["code"] == DONE
    # SendMessageRequestHeaderV2: group, topic, template topic, its queues, queue, flags, born, flag, properties
    message = {"a": "tests", "b": "kept", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    message |= {"j": "0", "k": "false", "m": "false"}
    for body in (b"a", b"b"):
        header, _ = asked(rocketmq.broker, SEND, signed(message, body, password="secret-1"), body)
        assert header["code"] == DONE, header
    address, broker = rocketmq.address, rocketmq.broker
    rocketmq.kill()
    assert not rocketmq.running
    rocketmq.restart()
    assert (rocketmq.address, rocketmq.broker, rocketmq.running) == (address, broker, True)
    header, route = asked(rocketmq.address, ROUTE, {"topic": "kept"})
    assert (header["code"], rocketmq.broker.encode() in route) == (DONE, True)
    assert asked(rocketmq.address, ROUTE, {"topic": "nobody's"})[0]["code"] == TOPIC_UNKNOWN
    assert offset(rocketmq, "kept") == (DONE, "2")


def test_rocketmq_lets_nobody_in_with_a_wrong_password(rocketmq: RocketMQ) -> None:
    assert offset(rocketmq, "kept", password="wrong") == (NO_PERMISSION, None)
    assert asked(rocketmq.broker, MAX_OFFSET, {"topic": "kept", "queueId": "0"})[0]["code"] == NO_PERMISSION


def connected(database: Database, password: str) -> psycopg.Connection[Any] | pymysql.Connection[Any]:
    """A client's connection. Any: whatever the rows hold."""
    if isinstance(database, Postgres):
        return psycopg.connect(database.dsn, password=password, autocommit=True)
    return pymysql.connect(
        host="127.0.0.1",
        port=database.port,
        user=database.user,
        password=password,
        database=database.database,
        autocommit=True,
    )


def said(database: Database, *statements: str) -> list[tuple[Any, ...]]:
    """What the database answers to the last statement. Any: whatever the rows hold."""
    with connected(database, database.password) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def test_a_database_keeps_its_rows_when_it_is_stopped_or_killed(database: Database) -> None:
    added = "INSERT INTO kept SELECT 1 + count(*) FROM kept"
    assert said(database, "CREATE TABLE kept (id INT PRIMARY KEY)", added, "SELECT * FROM kept") == [(1,)]
    address, pid = database.address, database.pid
    database.restart()
    assert said(database, added, "SELECT * FROM kept") == [(1,), (2,)]
    with connected(database, database.password):
        database.kill()
        assert not database.running
        with pytest.raises((psycopg.OperationalError, pymysql.OperationalError)):
            said(database, "SELECT 1")
        database.restart()
    assert (database.address, database.running) == (address, True)
    assert database.pid != pid
    assert said(database, added, "SELECT * FROM kept ORDER BY id") == [(1,), (2,), (3,)]


def test_a_database_lets_nobody_in_with_a_wrong_password(database: Database) -> None:
    for password in ("wrong", ""):
        with pytest.raises((psycopg.OperationalError, pymysql.OperationalError), match=r"password|denied"):
            connected(database, password)


def test_postgres_is_ready_for_logical_replication(postgres: Postgres) -> None:
    names = ("wal_level", "synchronous_commit", "fsync", "listen_addresses")
    shown = said(postgres, "SELECT " + ", ".join(f"current_setting('{name}')" for name in names))
    assert shown == [("logical", "on", "off", "127.0.0.1")]
    assert said(postgres, "SHOW server_version") == [("18.6",)]
    with psycopg.connect(postgres.dsn, replication="database", autocommit=True) as replication:
        cursor = psycopg.ClientCursor(replication)
        slot = cursor.execute("CREATE_REPLICATION_SLOT one TEMPORARY LOGICAL pgoutput").fetchone()
    assert slot is not None
    assert (slot[0], slot[3]) == ("one", "pgoutput")


def test_mariadb_has_a_binlog_of_whole_rows(mariadb: MariaDB) -> None:
    names = ("log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata", "gtid_strict_mode", "bind_address")
    shown = said(mariadb, "SELECT " + ", ".join(f"@@{name}" for name in names))
    assert shown == [(1, "ROW", "FULL", "FULL", 1, "127.0.0.1")]
    ((file, *_),) = said(mariadb, "SHOW MASTER STATUS")
    written = ("CREATE TABLE logged (id INT)", "INSERT INTO logged VALUES (1)")
    assert "Write_rows_v1" in [event[2] for event in said(mariadb, *written, f"SHOW BINLOG EVENTS IN '{file}'")]


def test_a_database_has_the_version_and_the_settings_that_are_asked_for(tmp_path: Path) -> None:
    with Postgres.start(tmp_path, version="14", settings={"wal_level": "replica"}) as postgres:
        assert said(postgres, "SELECT version() LIKE 'PostgreSQL 14.%', current_setting('wal_level')") == [
            (True, "replica")
        ]
        assert postgres.dsn == f"postgresql://postgres@{postgres.address}/postgres"
    assert not alive(postgres)
    with MariaDB.start(tmp_path, user="ann", settings={"skip_log_bin": "", "server_id": "7"}) as mariadb:
        assert said(mariadb, "SELECT @@log_bin, @@server_id, current_user()") == [(0, 7, "ann@127.0.0.1")]
    assert not alive(mariadb)
    with pytest.raises(ServiceFailed, match=r"there is no postgres 1, only 18\.6\.0 and 14\.20\.0"):
        Postgres.start(tmp_path, version="1")


def test_a_service_that_stops_leaves_no_process_and_starts_again_on_its_data(tmp_path: Path) -> None:
    port = free()
    with Kafka.start(tmp_path, port) as first:
        assert first.address == f"127.0.0.1:{port}"
        send(first.address, "kept", b"a")
        with pytest.raises(ServiceFailed, match="already runs"):
            Kafka.start(tmp_path)
        first.stop()
        assert not alive(first)
    with Kafka.start(tmp_path) as second:
        assert stored(second.address, "kept", 1) == [b"a"]
    assert not alive(second)


@pytest.mark.parametrize("kind", [Kafka, Postgres, MariaDB])
def test_a_service_dies_with_the_process_that_started_it(kind: type[Service], tmp_path: Path) -> None:
    start = f"services.{kind.__name__}.start(pathlib.Path(sys.argv[1]))"
    program = f"import sys, time, pathlib, services\n{start}\nprint(flush=True)\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", program + "time.sleep(600)", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as starter:
        assert starter.stdout is not None
        starter.stdout.readline()
        service = kind.found(tmp_path)
        assert service is not None
        assert service.running
        starter.send_signal(signal.SIGKILL)
    service._until(lambda: not alive(service), "died")


@pytest.mark.parametrize(
    ("kind", "setting"), [(Kafka, "principal.builder.class"), (Postgres, "wal_level"), (MariaDB, "binlog_format")]
)
def test_a_service_that_cannot_start_shows_its_log(kind: type[Service], setting: str, tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match=rf"the end of [^\n]+/{kind.name}/log:\n(.|\n)*no\.such\.Value"):
        kind.start(tmp_path, settings={setting: "no.such.Value"})


def alive(service: Service) -> bool:
    """Whether another process sees it."""
    other = type(service).found(service.folder.parent)
    return other is not None and other.running


@pytest.mark.parametrize("kind", [Kafka, Postgres, MariaDB])
def test_the_command_starts_services_that_stay_and_takes_them_away(kind: type[Service], tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        tool = Path(__file__).parent.parent / "tools" / "services.py"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, str(tool), *arguments, "--folder", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)

    name = kind.name
    try:
        started = run("up", name)
        assert started.returncode == 0, started.stderr
        found = kind.found(tmp_path)
        assert found is not None
        assert started.stdout == f"export {name.upper()}={found.address}\n"
        assert found.answers()
        assert run("up", name).stdout == started.stdout
        status = run("status", "--json")
        told = {"address": found.address, "pid": found.pid, "folder": str(tmp_path / name)}
        assert json.loads(status.stdout) == {name: told}
        assert status.returncode == 1, "a broker that does not run was not missed"
    finally:
        ended = run("down")
    assert ended.returncode == 0, ended.stderr
    assert not found.running
    assert list(tmp_path.iterdir()) == []


def test_jars_that_do_not_exist_are_told_apart_from_those_that_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingError, match=r"org.slf4j:no-such-thing:1.*not found.*jars\.log"):
        jars.resolve(["org.slf4j:no-such-thing:1"])
    found = jars.resolve(["org.slf4j:slf4j-simple:2.0.17"])
    assert sorted(jar.name for jar in found) == ["org.slf4j_slf4j-api-2.0.17.jar", "org.slf4j_slf4j-simple-2.0.17.jar"]
    monkeypatch.setattr(jars, "launch_gateway", None)
    assert jars.resolve(["org.slf4j:slf4j-simple:2.0.17"]) == found
