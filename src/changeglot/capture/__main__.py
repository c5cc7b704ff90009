"""The process that records: told on its input what, and ended by the end of its input, whoever gave it that."""

from __future__ import annotations

import json
import sys
import threading
import time

from changeglot.capture import part
from changeglot.capture.spool import Spool
from changeglot.errors import ChangeglotError

#: Seconds between two looks at whether what was held back may be seen.
_PAUSE = 0.1


def main() -> int:
    """0 when it was ended; else a line of JSON tells the problem."""
    given = json.loads(sys.stdin.readline())
    ended = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    try:
        of = part(given["source"])
        spool = Spool(given["folder"])

        looked = 0.0

        def stop() -> bool:
            nonlocal looked
            # It is asked often; what is held back may be seen a little later.
            if time.monotonic() > looked + _PAUSE:
                spool.settle()
                looked = time.monotonic()
            return ended.is_set()

        of.Recorder(of.Server(**given["server"]), spool).record(None, stop)
    except ChangeglotError as problem:
        sys.stderr.write(json.dumps({"problem": problem.what, "hint": problem.hint}) + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
