"""Tables whose rows are yet to be read: a note beside the spool, there from before anything of them is told."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from changeglot.capture.spool import durable


class Unread:
    """What a recorder still has to read, and what somebody asked it to read again."""

    def __init__(self, folder: Path) -> None:
        self._note, self._asked = folder / "unread.json", folder / "asked"

    def __bool__(self) -> bool:
        """Whether anything was ever noted."""
        return self._note.exists()

    def _noted(self) -> dict[str, list[str]]:
        noted: dict[str, list[str]] = json.loads(self._note.read_bytes()) if self else {}
        return {"tables": [], "again": [], "patterns": [], "known": []} | noted

    def _put(self, **changed: Collection[str]) -> None:
        said = {name: list(each) for name, each in (self._noted() | changed).items()}
        durable(self._note, json.dumps(said).encode())

    @property
    def tables(self) -> list[str]:
        """Those whose rows were not yet all read."""
        return self._noted()["tables"]

    @property
    def again(self) -> list[str]:
        """Those of them of which something was told before: what is not among the rows then is gone."""
        return self._noted()["again"]

    @property
    def patterns(self) -> list[str]:
        """By which tables were chosen when it was last looked."""
        return self._noted()["patterns"]

    def add(self, tables: Collection[str], *, again: bool = False, patterns: Sequence[str] | None = None) -> None:
        """These are to be read, too."""
        noted = self._noted()
        self._put(
            tables=sorted({*noted["tables"], *tables}),
            again=sorted({*noted["again"], *(tables if again else ())}),
            patterns=noted["patterns"] if patterns is None else patterns,
        )

    def done(self, tables: Collection[str]) -> None:
        """All rows of these were read."""
        noted = self._noted()
        left = {name: [each for each in noted[name] if each not in tables] for name in ("tables", "again")}
        self._put(**left)

    def meet(self, tables: Collection[str], *, read: bool) -> None:
        """Those that are met for the first time, or under another name than before, are to be read if they may."""
        noted = self._noted()
        met = {*tables} - {*noted["known"]}
        if met:
            self._put(known=sorted({*noted["known"], *met}), tables=sorted({*noted["tables"], *(met if read else ())}))

    def forget(self) -> None:
        self._note.unlink(missing_ok=True)

    # What somebody asks for, while a pipeline runs or before it does.

    def ask(self, tables: Collection[str]) -> None:
        """Has these read again, by whoever records or will."""
        self._asked.mkdir(parents=True, exist_ok=True)
        for each in tables:
            durable(self._asked / f"{each.encode().hex()}.table", b"")

    def asked(self) -> list[str]:
        """What was asked for and is not yet noted."""
        return sorted(bytes.fromhex(path.stem).decode() for path in self._asked.glob("*.table"))

    def take(self, known: Collection[str]) -> list[str]:
        """Notes what was asked for, of the tables that there are; names them."""
        asked = self.asked()
        found = [each for each in asked if each in known]
        if found:
            self.add(found, again=True)
        for each in asked:
            (self._asked / f"{each.encode().hex()}.table").unlink()
        return found
