"""One Spark session for all tests: UTC, two cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import changeglot


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = changeglot.session(cores=2, driver_memory="3g", spark__ui__showConsoleProgress="false")
    yield session
    session.stop()
