"""`python -m changeglot` is the command `changeglot`."""

from changeglot.cli import entry

if __name__ == "__main__":
    entry()
