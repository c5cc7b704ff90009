"""What can go wrong that is not a message's fault.

ChangeglotError
├── ConfigError        an option, a table file or an argument is wrong
│   └── UnknownFormat  no codec of that name
├── InputError         an input of the command line is missing or damaged (inputs.py)
├── SchemaChange       a table of the source changed as the pipeline was not told to follow (apply/schema.py)
├── Unreachable        a database that is captured, or a server that is followed, cannot be reached now
├── Lost               it has forgotten changes that were not recorded
├── Rewritten          a table was emptied or altered while its rows were read
├── ServiceFailed      a server to be thrown away does not start or answer (throwaway/service.py)
├── PipelineFailed     Spark, a disk or a service stopped a pipeline
└── MissingError       Java, Spark or the kernel is missing or does not fit
"""

from __future__ import annotations


class ChangeglotError(Exception):
    """What was being done and what is wrong, in lower case, and a sentence that helps."""

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}. {self.hint}" if self.hint else self.what


def complaint(text: str) -> str | None:
    r"""What an error of ours says in the text of another's, a task's or a stream's; None if there is none.

    >>> complaint("Traceback:\n  changeglot.errors.ConfigError: sink: is missing")
    'sink: is missing'
    """
    for line in text.splitlines():
        kind, _, said = line.strip().partition(": ")
        if kind.startswith("changeglot.") and said:
            return said.strip()
    return None


class ConfigError(ChangeglotError):
    """A setting is wrong; `path` tells which."""

    def __init__(self, path: str, what: str, *, hint: str = "") -> None:
        super().__init__(f"{path}: {what}", hint=hint)
        self.path = path


class UnknownFormat(ConfigError):
    """No codec has that name."""


class MissingError(ChangeglotError):
    """Java, Spark or the kernel is missing or does not fit."""


class PipelineFailed(ChangeglotError):
    """Spark, a disk or a service stopped it. What it had committed stays; started again, it goes on from there."""


class Unreachable(ChangeglotError):
    """A database that is captured, or a server that is followed, cannot be reached now: worth another attempt."""


class Lost(ChangeglotError):
    """Changes that were not recorded are gone: rows have to be read again."""


class Rewritten(ChangeglotError):
    """A table was emptied or altered while its rows were read: `table` has to be read again."""

    def __init__(self, table: str, what: str, *, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.table = table
