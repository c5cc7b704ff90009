"""One Spark session for all tests: UTC, two cores, with all that the sinks need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import changeglot
from changeglot.sinks import SINKS


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Iceberg's tables: a catalog has one for as long as a session lives."""
    return tmp_path_factory.mktemp("warehouse")


def lakes(folder: Path) -> dict[str, str]:
    """What a session needs for all sinks at once."""
    made = [sink(path=str(folder)) for sink in SINKS.values()]
    settings = [sink.session_settings() for sink in made]
    return {
        **{name: value for each in settings for name, value in each.items()},
        "spark.sql.extensions": ",".join(each["spark.sql.extensions"] for each in settings),
        "spark.jars.packages": ",".join(package for sink in made for package in sink.packages),
    }


@pytest.fixture(scope="session")
def spark(warehouse: Path) -> Iterator[SparkSession]:
    settings = {"spark.ui.showConsoleProgress": "false", **lakes(warehouse)}
    session = changeglot.session(cores=2, driver_memory="3g", **settings)
    yield session
    session.stop()
