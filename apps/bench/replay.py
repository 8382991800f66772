"""What an operation says to the database, recorded and said again by pgbench: the same work without our code.

Texts and parameters are those of a run, so that they can't be others than the product's. They suit only a database
like the one in which they were first said: each time they get a fresh copy of that.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db import connection, transaction
from psycopg.conninfo import make_conninfo

from apps.bench import load
from apps.bench.rows import Slice

WARM_UPS: Final = 3
"""How often pgbench says it before the times that count: statements are planned then."""

_TABLE: Final = "bench_replay"
_NULL: Final = "(null)"
_PLACEHOLDER: Final = re.compile(r"%(?:%|s|\((\w+)\)s)")
# Named anew each time, which is of no account.
_SAVEPOINT: Final = re.compile(r'"s\d+_x\d+"')
# What pgbench would take for a variable of its own.
_FOREIGN: Final = re.compile(r"(?<!:):\w")
_LOOKING_UP: Final = re.compile(r"^\s*([0-9.]+)\s+\d+\s+select v0\b", re.MULTILINE)
_MILLION: Final = 1e6

Acting = Callable[[], AbstractContextManager[None]]
"""Begins a transaction as a recorded operation does."""


@dataclass(frozen=True, slots=True)
class Said:
    """A statement as Django heard it."""

    text: str
    parameters: Mapping[str, Any] | Sequence[Any] = ()

    def named(self, variables: Iterator[str]) -> tuple[str, dict[str, Any]]:
        """The statement with pgbench's variables for its parameters, and the value of each.

        :raises ClientFailed: if pgbench would misread it.
        """
        if not self.parameters:
            return self.text, {}
        if _FOREIGN.search(self.text):
            raise load.ClientFailed(f"pgbench would misread: {self.text}")
        positions = iter(range(len(self.parameters)))
        names: dict[Any, str] = {}

        def name(found: re.Match[str]) -> str:
            if found[0] == "%%":
                return "%"
            key = found[1] or next(positions)
            if key not in names:
                names[key] = next(variables)
            return f":{names[key]}"

        text = _PLACEHOLDER.sub(name, self.text)
        return text, {variable: self._value(key) for key, variable in names.items()}

    def _value(self, key: Any) -> Any:
        return self.parameters[key]


@dataclass(frozen=True, slots=True)
class Recording:
    """One script for all times that an operation was done, and what each of them fills in."""

    script: str
    times: Sequence[Mapping[str, str | None]]

    def said_again(self, pgbench: Path, database: str, *, units: int) -> Slice:
        """By pgbench, all of it in its order. Each time does so many units.

        :raises ClientFailed: if pgbench does not manage.
        """
        self._hand_over(database)
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "script.sql"
            script.write_text(self.script, encoding="utf-8")
            done = subprocess.run(
                [
                    str(pgbench),
                    *("--no-vacuum", "--protocol=prepared", "--file", str(script), "--define", "nth=0"),
                    *("--transactions", str(len(self.times)), "--report-per-command"),
                    *("--log", f"--log-prefix={folder}/log"),
                    make_conninfo(settings.DATABASE_URL, dbname=database, options=_options()),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            told = [line.split() for log in Path(folder).glob("log.*") for line in log.read_text().splitlines()]
        looking_up = _LOOKING_UP.search(done.stdout)
        if done.returncode or looking_up is None or len(told) != len(self.times):
            raise load.ClientFailed(f"pgbench failed: {done.stderr}")
        # That it has to look up what to fill in is no part of the operation.
        latencies = [int(line[2]) / _MILLION - float(looking_up[1]) / 1000 for line in told][WARM_UPS:]
        return Slice(units=len(latencies) * units, seconds=sum(latencies), latencies=latencies)

    def _hand_over(self, database: str) -> None:
        names = list(self.times[0])
        with psycopg.connect(settings.DATABASE_URL, autocommit=True, dbname=database) as owner:
            owner.execute("set role none")
            owner.execute(f"drop table if exists {_TABLE}")
            owner.execute(f"create table {_TABLE} (nth int primary key, {', '.join(f'{name} text' for name in names)})")
            owner.execute(f"grant select on {_TABLE} to gatehouse_app")
            with owner.cursor() as cursor, cursor.copy(f"copy {_TABLE} from stdin") as copy:
                for nth, values in enumerate(self.times, start=1):
                    copy.write_row([nth, *(_NULL if values[name] is None else values[name] for name in names)])


def record(work: load.Work, acting: Acting, *, times: int) -> Recording:
    """Do it so many times and write down what is said; its client is warm already.

    :raises ClientFailed: if it does not say the same each time.
    """
    recording: Recording = load.apart(partial(_recorded, work, acting, times))
    return recording


def _recorded(work: load.Work, acting: Acting, times: int) -> Recording:
    operation = work(0)
    listener = _Listener(_beginning(acting))
    done = []
    for _ in range(times):
        with connection.execute_wrapper(listener):
            operation()
        done.append(_named(listener.said))
        listener.said = []
    texts = {tuple(said) for said, _ in done}
    if len(texts) != 1:
        raise load.ClientFailed(
            f"An operation said {len(texts)} different things, {times} times: not to be said again."
        )
    values = [_as_text(filled_in) for _, filled_in in done]
    script, nullable = list(texts.pop()), {name for one in values for name, text in one.items() if text is None}
    return Recording(_script(script, list(values[0]), nullable), values)


@dataclass(slots=True)
class _Listener:
    """Hears what Django hears of statements, and where transactions begin and end."""

    beginning: Said
    said: list[Said] = field(default_factory=list)
    _within: bool = False

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001  # Django's form
        if not self._within:
            self._within = True
            self.said += [Said(r"\startpipeline"), Said("begin"), self.beginning, Said(r"\endpipeline")]
            # Before the hooks of the operation itself.
            transaction.on_commit(self._ended)
        self.said.append(Said(sql, params or ()))
        return execute(sql, params, many, context)

    def _ended(self) -> None:
        self.said.append(Said("commit"))
        self._within = False


def _beginning(acting: Acting) -> Said:
    """What a transaction's settings are set with: said in one exchange with `begin`, unless one has begun already."""
    heard: list[Said] = []

    def hear(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001  # Django's form
        heard.append(Said(sql, params or ()))
        return execute(sql, params, many, context)

    with transaction.atomic(), connection.execute_wrapper(hear), acting():
        pass
    return next(said for said in heard if "set_config" in said.text)


def _named(said: Iterable[Said]) -> tuple[list[str], dict[str, Any]]:
    """The statements with variables for their parameters, and what those were."""
    variables = (f"v{nth}" for nth in range(10_000))
    texts: list[str] = []
    values: dict[str, Any] = {}
    for one in said:
        text, filled_in = one.named(variables)
        texts.append(_SAVEPOINT.sub('"s"', text))
        values |= filled_in
    return texts, values


def _as_text(values: Mapping[str, Any]) -> dict[str, str | None]:
    """As the database writes them."""
    texts: dict[str, str | None] = {}
    with connection.cursor() as cursor:
        for name, value in values.items():
            if isinstance(value, str):
                texts[name] = value
            else:
                cursor.execute("select (%s)::text", [value])
                (texts[name],) = cursor.fetchone()
    return texts


def _script(statements: Iterable[str], names: Sequence[str], nullable: Iterable[str]) -> str:
    script = "\n".join(one if one.startswith("\\") else f"{one.strip()}\n;" for one in statements)
    for name in nullable:
        script = re.sub(rf":{name}\b", f"nullif(:{name}, '{_NULL}')", script)
    return f"\\set nth :nth + 1\nselect {', '.join(names)} from {_TABLE} where nth = :nth \\gset\n{script}\n"


def _options() -> str:
    options: str = settings.DATABASES["default"]["OPTIONS"]["options"]
    return options
