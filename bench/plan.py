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

LOSSES = "told what is lost"
"""After a translation's name: the same with the column `lost`, which a job that only sends messages does not read."""

BARE = "without schemas"
"""After a translation to arcion: its messages are then as large as those that are read, not five times as large."""
