"""A pytest plugin: every run gets servers of its own, unless DATABASE_URL and REDIS_URL name others.

Load it with ``-p config.stack.testing`` (``bin/test`` does): it must start the servers before pytest-django reads
the settings. The workers of pytest-xdist share the servers; pytest-django gives each a database, this plugin a
Redis number. The servers die with the run, even when it is killed, and the next run removes what that left.

Tiers: an unmarked test is fast; ``--tier ci`` adds those marked ``ci``; ``--tier long`` runs those marked ``long``.
A test that is named on the command line runs whatever its tier.
"""

import os
from collections.abc import Generator
from contextlib import ExitStack
from urllib.parse import urlsplit

import psycopg
import pytest

from config.stack.supervisor import Supervisor

_ACTS_AS_ALL = "grant gatehouse_app, gatehouse_operator, gatehouse_system to gatehouse with inherit false, set true"
_TIERS = {"fast": "not ci and not long", "ci": "not long", "long": "long"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=tuple(_TIERS), default="fast", help="which tests to run (default: fast)")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        os.environ["REDIS_URL"] = _own_number(os.environ["REDIS_URL"], int(worker.removeprefix("gw")) + 1)
    else:
        run = ExitStack()
        early_config.add_cleanup(run.close)
        supervisor = run.enter_context(Supervisor.of_a_run(durable=False))
        supervisor.start_servers()
        os.environ.update(supervisor.environment)
        if "postgres" in supervisor.kept:
            # What tests start has the three logins. Tests act in all roles by the owner's, in one transaction.
            os.environ["DATABASE_URL"] = owner = os.environ.pop("DATABASE_URL_OWNER")
            with psycopg.connect(owner, user="postgres") as connection:
                connection.execute(_ACTS_AS_ALL)
            del os.environ["DATABASE_URL_SYSTEM"]
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    if not any("::" in argument for argument in config.invocation_params.args):
        config.option.markexpr = config.option.markexpr or _TIERS[config.getoption("--tier")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest first, so that no process works alone at the end.
    items.sort(key=lambda item: item.get_closest_marker("ci") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        terminalreporter.write_line("Slow tests run with --tier ci or --tier long; FILE::TEST runs in any tier.")


def _own_number(url: str, number: int) -> str:
    """The same Redis server, another of its numbered databases."""
    if url.startswith("unix://"):
        return f"{url.partition('?')[0]}?db={number}"
    return urlsplit(url)._replace(path=f"/{number}").geturl()
