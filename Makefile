# changeglot: `make help` lists what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FLINK := .venv-flink
SPARK42 := .venv-spark42
JAR := src/changeglot/kernel/changeglot-kernel.jar
JAVA_SOURCES := $(shell find src/changeglot/kernel/java -name '*.java')
.DEFAULT_GOAL := help
.PHONY: help java setup kernel flink spark42 demo check test golden bench services services-down wheel compat clean

help:  ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 15

java:
	@command -v javac >/dev/null 2>&1 || { \
	  echo "changeglot needs a JDK, 17 or 21, and none was found on the PATH."; \
	  echo "Debian, Ubuntu: apt-get install openjdk-17-jdk-headless   macOS: brew install openjdk@17"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "changeglot needs Python 3.11 or newer; say which one with PYTHON=python3.11 make ..."; exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	touch $@

setup: java $(VENV)/.installed $(JAR)  ## the environment in .venv, and the kernel

$(JAR): $(JAVA_SOURCES) tools/build_kernel.py | $(VENV)/.installed
	$(BIN)/python tools/build_kernel.py

kernel: java $(JAR)  ## compile the Java kernel

$(FLINK)/.installed: bench/requirements-flink.txt
	$(PYTHON) -m venv $(FLINK)
	$(FLINK)/bin/python -m pip install --quiet --disable-pip-version-check -r bench/requirements-flink.txt
	touch $@

flink: java $(FLINK)/.installed  ## Flink, 844 MB, which must read what we write, and which we are measured against

$(SPARK42)/.installed: Makefile
	$(PYTHON) -m venv $(SPARK42)
	$(SPARK42)/bin/python -m pip install --quiet --disable-pip-version-check 'pyspark>=4.2,<4.3' hypothesis pytest PyYAML
	touch $@

spark42: java $(SPARK42)/.installed  ## the next Spark, for `make compat`, and to measure its real-time mode

demo: setup  ## a throwaway PostgreSQL, changed while it is watched, and mirrored
	$(BIN)/changeglot demo

check: setup  ## formatting, lint, types, imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports

test: setup flink  ## all tests, two files at a time, each with a Spark session of its own
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

golden: setup  ## rewrite what the golden messages should decode to; read the diff
	$(BIN)/python tools/golden.py

bench: setup flink spark42  ## measure against Flink and the floors, into bench/results.md
	$(BIN)/python bench/run.py
	$(BIN)/python bench/apply.py
	$(BIN)/python bench/load.py
	$(BIN)/python bench/topics.py
	$(BIN)/python bench/capture.py
	$(BIN)/python bench/serve.py

services: setup  ## Kafka and RocketMQ, or WHAT="postgres mariadb", to try things with; says what to paste
	@$(BIN)/python tools/services.py up $(WHAT)

services-down: setup  ## stop them and delete what they held
	@$(BIN)/python tools/services.py down $(WHAT)

wheel: setup  ## the package, with the kernel in it, into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist .

compat: setup spark42  ## the same kernel jar and the codec tests on Spark 4.2
	PYTHONPATH=src $(SPARK42)/bin/python -m pytest tests/test_codecs.py tests/test_kernel.py

clean:  ## remove what was built
	rm -rf $(VENV) .venv-* $(JAR) dist build .pytest_cache .mypy_cache .ruff_cache
