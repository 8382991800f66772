"""docker-compose.yml has the shape of production, whether or not there is a Docker to run it."""

import json
import shutil
import subprocess
from importlib.resources import files
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema_rs
import pytest
import yaml

from apps.workers import manifests

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"


def _compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded


def test_it_follows_the_compose_specification() -> None:
    schema = files("check_jsonschema.builtin_schemas").joinpath("vendor/compose-spec.json").read_text(encoding="utf-8")

    jsonschema_rs.validate(json.loads(schema), _compose())


def test_docker_accepts_it() -> None:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip("there is no docker compose here")

    done = subprocess.run(
        ["docker", "compose", "--file", str(FILE), "config", "--quiet"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_every_name_it_uses_is_declared() -> None:
    compose = _compose()
    services = compose["services"]

    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert set(service.get("networks", [])) <= set(compose["networks"]), name
        named = {volume.partition(":")[0] for volume in service.get("volumes", []) if volume[0] not in "./$"}
        assert named <= set(compose["volumes"]), name
        assert {config["source"] for config in service.get("configs", [])} <= set(compose["configs"]), name


def test_each_queue_has_workers_of_its_own() -> None:
    commands = [service.get("command", "") for service in _compose()["services"].values()]

    served = [command.partition("--queues ")[2].split()[0] for command in commands if "--queues" in command]

    assert sorted(served) == ["deliver", "execute", "nudge", "sweep"]


def test_the_workers_are_where_the_product_calls_and_nothing_else_is() -> None:
    compose = _compose()
    (allowed,) = compose["services"]["web"]["environment"]["GATEHOUSE_ALLOWED_NETWORKS"].split(",")
    workers = {name: one for name, one in compose["services"].items() if "examples/workers/" in one.get("command", "")}

    assert len(workers) == 6
    for name, worker in workers.items():
        words = worker["command"].split()
        endpoint = words[words.index("--endpoint") + 1]
        assert manifests.endpoint(endpoint, allow_loopback=False, networks=[ip_network(allowed)]) == endpoint
        assert urlsplit(endpoint).hostname == name
        assert worker["networks"] == ["workers"]
    assert compose["networks"]["workers"]["ipam"]["config"] == [{"subnet": allowed}]
    for name in ("database", "broker", "proxy"):
        assert "workers" not in compose["services"][name]["networks"]
    for name in ("web", "worker-execute", "worker-sweep"):
        assert "workers" in compose["services"][name]["networks"]


def test_it_holds_no_secret() -> None:
    for service in _compose()["services"].values():
        for variable, value in service.get("environment", {}).items():
            if variable.endswith(("_KEY", "_KEYS", "PASSWORD", "TOKEN")):
                assert value.startswith("${"), variable
                assert value.endswith(":-}"), variable


def test_the_scripts_it_runs_exist() -> None:
    for service in _compose()["services"].values():
        for word in str(service.get("command", "")).split():
            if word.endswith(".py"):
                assert (ROOT / word).is_file(), word


def test_it_says_which_version_of_compose_it_needs() -> None:
    assert any("content" in config for config in _compose()["configs"].values())
    for document in (FILE, ROOT / "docs" / "operations.md"):
        assert "Docker Compose 2.23.1 or newer" in " ".join(document.read_text(encoding="utf-8").split()), document.name
