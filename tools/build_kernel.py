"""Compiles the Java kernel against PySpark's own jars into the package: `python tools/build_kernel.py`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

KERNEL = Path(__file__).parent.parent / "src" / "changeglot" / "kernel"
JAR = KERNEL / "changeglot-kernel.jar"


def main() -> int:
    """Builds the jar, the same bytes from the same sources; says what is missing if it cannot."""
    javac = shutil.which("javac")
    if javac is None:
        print("No Java compiler (javac) was found. Install a JDK, 17 or 21 (Debian: openjdk-17-jdk-headless).")
        return 1
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        print("PySpark is not installed in this environment. Run `make setup`.")
        return 1
    sources = sorted(map(str, KERNEL.glob("java/**/*.java")))
    with tempfile.TemporaryDirectory() as folder:
        jars = str(Path(spark.origin).parent / "jars" / "*")
        flags = ["--release", "17", "-Xlint:all,-serial,-path,-processing,-classfile", "-Werror"]
        done = subprocess.run([javac, *flags, "-cp", jars, "-d", folder, *sources], check=False)
        if done.returncode:
            return done.returncode
        with zipfile.ZipFile(JAR, "w", zipfile.ZIP_DEFLATED) as jar:
            for file in sorted(Path(folder).rglob("*.class")):
                entry = zipfile.ZipInfo(file.relative_to(folder).as_posix(), (1980, 2, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                jar.writestr(entry, file.read_bytes())
    print(f"built {JAR.relative_to(Path.cwd()) if JAR.is_relative_to(Path.cwd()) else JAR.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
