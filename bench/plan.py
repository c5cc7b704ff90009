"""What is measured, in words that the engines and the report share."""

FORMATS: dict[str, str] = {"canal": "canal", "debezium": "arcion"}
"""The kinds of generated messages, and the format that reads each."""

TRANSLATIONS: tuple[tuple[str, str], ...] = (
    ("canal", "arcion"),
    ("canal", "canal"),
    ("canal", "electric"),
    ("debezium", "canal"),
)
"""Kinds of messages, and the format each is translated to."""
