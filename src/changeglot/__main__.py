"""`python -m changeglot` is the command `changeglot`."""

import sys

from changeglot.cli import main

if __name__ == "__main__":
    sys.exit(main())
