"""What a run of the benchmark has measured, as data: read by report.py."""

from dataclasses import dataclass, field
from statistics import median

from worker import Contender, Run


@dataclass
class Measurement:
    """The runs of one contender, or why there are none."""

    contender: Contender
    runs: list[Run] = field(default_factory=list)
    problem: str | None = None

    @property
    def cpu(self) -> float:
        """Seconds of CPU in one run, the median."""
        return median(run.cpu for run in self.runs)

    @property
    def wall(self) -> float:
        """Seconds on the clock of one run, the median."""
        return median(run.wall for run in self.runs)

    @property
    def spread(self) -> float:
        """How far the runs lie apart: largest less smallest CPU, as a part of the median."""
        cpus = [run.cpu for run in self.runs]
        return (max(cpus) - min(cpus)) / self.cpu


@dataclass(frozen=True)
class MemoryRun:
    """The command line over one large file. `peak` is the memory of all its processes together."""

    input_bytes: int
    output_bytes: int
    messages_in: int
    messages_out: int
    driver_memory: str
    peak: int
    wall: float
    problem: str | None = None


@dataclass(frozen=True)
class ApplyRun:
    """A batch of changes into a table: `who` is "merge", a bare MERGE, or "scd1"; seconds of each round."""

    sink: str
    who: str
    rows: int
    size: int
    clock: list[float]
    cpu: list[float]


@dataclass(frozen=True)
class LoadRun:
    """All messages of the shop into tables: seconds of each round, the rows then there, and seconds to read them."""

    who: str
    messages: int
    clock: list[float]
    cpu: list[float]
    rows: list[int]
    read: list[float]


@dataclass(frozen=True)
class TopicRun:
    """All messages of a topic: `part` is the comparison; seconds of each round, and the messages or rows then there."""

    part: str
    who: str
    messages: int
    clock: list[float]
    cpu: list[float]
    out: list[int]


@dataclass(frozen=True)
class DelayRun:
    """Messages, or rows, through a query that goes on, `rate` of them wanted in a second and `sent` done so.

    `delays` are the milliseconds from sent to read again that half and 99 of 100 took at most, of those sent in
    `seconds` after a warm-up; `growth` is by how many seconds they grew in each. `translated` are messages a second,
    from the first that was sent to the last that was read; `lost` those that were waited for in vain.
    """

    rate: int
    seconds: int
    sent: float
    delays: tuple[float, float]
    growth: float
    translated: float
    lost: int
    mode: str = "micro-batch"

    @property
    def steady(self) -> bool:
        """Whether the query kept up: else the delays say only how long it was watched."""
        return not self.lost and self.growth < 0.1 and self.delays[1] < self.seconds * 1000 / 2


@dataclass(frozen=True)
class CaptureRun:
    """Rows or changes of a database: `part` is the comparison; of each round its seconds and what then was there.

    `cpu` is the contender's, `server` the database's; `before` are seconds until the clock began, for a contender whose
    start is not counted.
    """

    part: str
    who: str
    version: str
    rows: int
    clock: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    out: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Rows or changes in a second on the clock, by the median."""
        return self.rows / median(self.clock)

    @property
    def whole(self) -> bool:
        """Whether all were there, each once, in every round."""
        return all(out == self.rows for out in self.out)


@dataclass(frozen=True)
class ServeRun:
    """A client that gets all rows of a table: so many bytes, and the seconds of each round."""

    who: str
    rows: int
    bytes: int
    clock: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class WaitRun:
    """Clients that wait for `shapes`: seconds from a commit of so many changes until a client knows of it.

    `delays` are those that half and 99 of 100 took at most, over all commits; `ends` of each commit until the last one
    knows; `memory` the bytes of the server.
    """

    what: str
    clients: int
    shapes: int
    changes: int
    commits: int
    delays: tuple[float, float]
    ends: list[float]
    memory: int


@dataclass
class Results:
    """One run of the benchmark. `checks` are counts of changes and problems, by contender."""

    rows: int
    rounds: int
    cores: int
    trial: bool
    machine: dict[str, str]
    versions: dict[str, str] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    checks: dict[str, dict[str, int]] = field(default_factory=dict)
    memory: list[MemoryRun] = field(default_factory=list)
    apply: list[ApplyRun] = field(default_factory=list)
    loads: list[LoadRun] = field(default_factory=list)
    topics: list[TopicRun | DelayRun] = field(default_factory=list)
    capture: list[CaptureRun | DelayRun] = field(default_factory=list)
    serve: list[ServeRun | WaitRun] = field(default_factory=list)

    def named(self, name: str) -> Measurement | None:
        """The measurement of that name; None when it was not run or never finished."""
        for measurement in self.measurements:
            if measurement.contender.name == name and measurement.runs:
                return measurement
        return None

    @property
    def others(self) -> float:
        """The part of the machine that other processes took during the runs."""
        runs = [run for measurement in self.measurements for run in measurement.runs]
        capacity = sum(run.wall for run in runs) * int(self.machine["cores"])
        return sum(run.others for run in runs) / capacity if capacity else 0.0
