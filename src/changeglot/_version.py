"""The version, apart, so that it can be read without Spark."""

__version__ = "0.1.0"
