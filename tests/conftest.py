"""One Spark session for all tests: UTC, two cores, with all that the sinks need. And commands run in it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from recorded import PASSWORD, Place, dropped
from services import Kafka, RocketMQ

import changeglot
from changeglot import cli, jars
from changeglot.pipeline import session_settings
from changeglot.sinks import LAKES
from changeglot.sources.kafka import Kafka as KafkaSource
from changeglot.throwaway.databases import MariaDB, Postgres

#: Files that take the longest, the longest first: with two at a time, what is long must not be last.
LONG = ("test_kills", "test_pipelines", "test_capture", "test_topic_kills", "test_served", "test_serve", "test_resync")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    names = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: names.get(item.path.stem, len(LONG)))


@pytest.fixture(scope="session", autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for what Spark keeps while it runs, here and in other processes: one that is killed leaves it."""
    folder = tmp_path_factory.mktemp("scratch")
    os.environ["SPARK_LOCAL_DIRS"] = str(folder)
    yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one for each sink: Iceberg's catalog has the same for as long as a session lives."""
    return tmp_path_factory.mktemp("warehouse")


def lakes(folder: Path) -> dict[str, str]:
    """What a session needs for all sinks at once."""
    made = [sink(path=str(folder / name)) for name, sink in LAKES.items()]
    return session_settings([*made, KafkaSource("", ("any",))])


@pytest.fixture(scope="session")
def spark(warehouse: Path) -> Iterator[SparkSession]:
    settings = {"spark.ui.showConsoleProgress": "false", **lakes(warehouse)}
    session = changeglot.session(cores=2, driver_memory="3g", **settings)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with Kafka.start(tmp_path_factory.mktemp("services"), user="ann", password="secret") as service:
        yield service


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    with RocketMQ.start(tmp_path_factory.mktemp("services")) as service:
        yield service


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres.start(tmp_path_factory.mktemp("newest"), password=PASSWORD) as service:
        yield service


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres.start(tmp_path_factory.mktemp("oldest"), password=PASSWORD, version="14") as service:
        yield service


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    with MariaDB.start(tmp_path_factory.mktemp("mariadb"), password=PASSWORD) as service:
        yield service


@pytest.fixture
def place(newest: Postgres, tmp_path: Path) -> Iterator[Place]:
    made = Place(newest, tmp_path)
    yield made
    dropped(made)


@pytest.fixture(params=["newest", "oldest"])
def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(request.getfixturevalue(request.param), tmp_path)
    yield made
    dropped(made)


@pytest.fixture(scope="session")
def electric() -> Path:
    """The folder where Electric's clients are installed."""
    wanted = (Path(__file__).parent / "electric" / "package.json").read_bytes()
    folder = jars.cache() / f"electric-{hashlib.sha256(wanted).hexdigest()[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "electric.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            draft = folder.with_name(f"{folder.name}.new")
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            (draft / "package.json").write_bytes(wanted)
            subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], cwd=draft, check=True)
            draft.rename(folder)
    return folder


class Ran(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Stdout as JSON lines. Any: whatever JSON can say."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        """The summary that --json prints. Any: counts, texts and lists."""
        summary: dict[str, Any] = json.loads(self.err.splitlines()[-1])
        return summary


Run = Callable[..., Ran]


@pytest.fixture
def run(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, in the session of all tests."""
    assert spark.getActiveSession() is not None

    def command(*argv: str | Path) -> Ran:
        capfd.readouterr()
        status = cli.main([str(argument) for argument in argv])
        return Ran(status, *capfd.readouterr())

    return command
