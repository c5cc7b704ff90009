"""changeglot: change data capture on Spark that speaks every format."""

from changeglot._version import __version__
from changeglot.codecs import CODECS, lost_between
from changeglot.errors import ChangeglotError
from changeglot.kernel import prepare
from changeglot.layout import decode, detect, encode, translate
from changeglot.model import CHANGE
from changeglot.session import session
from changeglot.tables import Tables

__all__ = [
    "CHANGE",
    "CODECS",
    "ChangeglotError",
    "Tables",
    "__version__",
    "decode",
    "detect",
    "encode",
    "lost_between",
    "prepare",
    "session",
    "translate",
]
