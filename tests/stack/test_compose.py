"""docker-compose.yml has the shape of production, whether or not there is a Docker to run it."""

import json
from importlib.resources import files
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema_rs
import yaml

from apps.workers import manifests

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"


def _compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded


def test_compose_file_follows_the_specification() -> None:
    schema = files("check_jsonschema.builtin_schemas").joinpath("vendor/compose-spec.json").read_text(encoding="utf-8")

    jsonschema_rs.validate(json.loads(schema), _compose())


def test_names_are_declared() -> None:
    compose = _compose()
    services = compose["services"]

    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert set(service.get("networks", [])) <= set(compose["networks"]), name
        named = {volume.partition(":")[0] for volume in service.get("volumes", []) if volume[0] not in "./$"}
        assert named <= set(compose["volumes"]), name
        assert {config["source"] for config in service.get("configs", [])} <= set(compose["configs"]), name


def test_each_queue_has_its_own_workers() -> None:
    commands = [service.get("command", "") for service in _compose()["services"].values()]

    served = [command.partition("--queues ")[2].split()[0] for command in commands if "--queues" in command]

    assert sorted(served) == ["deliver", "execute", "notify", "sweep"]


def test_only_workers_are_in_the_called_network(settings: Any) -> None:
    compose = _compose()
    (allowed,) = compose["services"]["web"]["environment"]["GATEHOUSE_ALLOWED_NETWORKS"].split(",")
    settings.ALLOW_LOOPBACK, settings.ALLOWED_NETWORKS = False, [ip_network(allowed)]
    workers = {name: one for name, one in compose["services"].items() if "examples/workers/" in one.get("command", "")}

    assert len(workers) == 6
    for name, worker in workers.items():
        words = worker["command"].split()
        endpoint = words[words.index("--endpoint") + 1]
        assert manifests.endpoint(endpoint) == endpoint
        assert urlsplit(endpoint).hostname == name
        assert worker["networks"] == ["workers"]
    assert compose["networks"]["workers"]["ipam"]["config"] == [{"subnet": allowed}]
    for name in ("database", "broker", "proxy"):
        assert "workers" not in compose["services"][name]["networks"]
    for name in ("web", "worker-execute", "worker-sweep"):
        assert "workers" in compose["services"][name]["networks"]


def test_compose_file_holds_no_secret() -> None:
    for service in _compose()["services"].values():
        for variable, value in service.get("environment", {}).items():
            if variable.endswith(("_KEY", "_KEYS", "PASSWORD", "TOKEN")):
                assert value.startswith("${"), variable
                assert value.endswith(":-}"), variable


def test_scripts_exist() -> None:
    words = " ".join(str(service.get("command", "")) for service in _compose()["services"].values()).split()
    assert [word for word in words if word.endswith(".py") and not (ROOT / word).is_file()] == []
