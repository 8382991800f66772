"""The files of a deployment: docker-compose.yml and deploy/, whether or not there is anything to run them."""

import json
import re
import shutil
import sys
import tomllib
from importlib.resources import files
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

from apps.console import metrics
from apps.workers import manifests
from config.stack.supervisor import WEB
from tests.commands import ROOT, Ended, of_a_person, run, with_database

DEPLOY = ROOT / "deploy"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PARTS = ("notify", "deliver", "execute", "sweep", "beat")


def _loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _compose() -> dict[str, Any]:
    return dict(_loaded(ROOT / "docker-compose.yml"))


def _kubernetes() -> list[dict[str, Any]]:
    return list(_loaded(DEPLOY / "kubernetes.yaml")["items"])


def test_compose_file_follows_the_specification() -> None:
    schema = files("check_jsonschema.builtin_schemas").joinpath("vendor/compose-spec.json").read_text(encoding="utf-8")

    jsonschema_rs.validate(json.loads(schema), _compose())


def test_names_are_declared_and_scripts_exist() -> None:
    compose = _compose()
    services = compose["services"]
    words = " ".join(str(service.get("command", "")) for service in services.values()).split()
    assert [word for word in words if word.endswith(".py") and not (ROOT / word).is_file()] == []

    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert set(service.get("networks", [])) <= set(compose["networks"]), name
        named = {volume.partition(":")[0] for volume in service.get("volumes", []) if volume[0] not in "./$"}
        assert named <= set(compose["volumes"]), name
        assert {config["source"] for config in service.get("configs", [])} <= set(compose["configs"]), name


def test_containers_are_pinned_bounded_and_examined() -> None:
    for name, service in _compose()["services"].items():
        image, _, tag = service["image"].partition(":")
        assert re.fullmatch(r"\d+\.\d+(\.\d+)?", tag), name
        assert tag == VERSION or not image.startswith("gatehouse")
        assert service["mem_limit"], name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
        assert "healthcheck" in service or name in {"migrate", "beat"}
    for kind in ("Deployment", "Job"):
        for item in (item for item in _kubernetes() if item["kind"] == kind):
            (container,) = item["spec"]["template"]["spec"]["containers"]
            assert container["image"] == f"gatehouse:{VERSION}"
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (".github/ISSUE_TEMPLATE/bug.yml", r"placeholder: ([\d.]+),"),
        ("config/__init__.py", r'^VERSION = "(.*)"'),
        ("clients/python/pyproject.toml", r'^version = "(.*)"'),
        ("clients/typescript/package.json", r'"version": "(.*)"'),
        ("clients/typescript/README.md", r"gatehouse-client-(.*)\.tgz"),
        ("docs/deploy.md", r"/gatehouse:([\d.]+)"),
    ],
)
def test_product_and_clients_are_of_one_version(file: str, told: str) -> None:
    assert re.findall(told, (ROOT / file).read_text(), re.MULTILINE)[:1] == [VERSION]


@pytest.mark.parametrize(("tag", "released"), [(f"v{VERSION}", True), ("v0.0.9", False)])
def test_tag_releases_the_version_that_the_changelog_tells_of(tag: str, released: bool, tmp_path: Path) -> None:
    workflow = _loaded(ROOT / ".github" / "workflows" / "ci.yml")
    schema = files("check_jsonschema.builtin_schemas").joinpath("vendor/github-workflows.json").read_text()
    # YAML reads the key `on` as true.
    jsonschema_rs.validate(json.loads(schema), {"on" if key is True else key: told for key, told in workflow.items()})
    (script,) = (step["run"] for step in workflow["jobs"]["release"]["steps"] if "changelog" in step.get("name", ""))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    told = (ROOT / "CHANGELOG.md").read_text().replace("[Unreleased]", f"[{VERSION}]", 1)
    (tmp_path / "CHANGELOG.md").write_text(told)
    done = run("bash", "-eo", "pipefail", "-c", script, env=of_a_person(GITHUB_REF_NAME=tag), cwd=tmp_path)
    assert (done.returncode == 0) is released, done.stderr
    if released:
        assert "### Added" in (tmp_path / "notes.md").read_text()


@pytest.mark.parametrize("version", ["1.30", kubernetes_validate.latest_version()])
def test_manifests_follow_the_schemas_of_kubernetes(version: str) -> None:
    for item in _kubernetes():
        kubernetes_validate.validate(item, version, strict=True)


def test_each_process_runs_the_same_command_everywhere() -> None:
    services = _compose()["services"]
    composed = {
        name.removeprefix("worker-"): service["command"].split()
        for name, service in services.items()
        if "celery" in service.get("command", "")
    }
    deployed = {
        item["metadata"]["labels"]["part"]: item["spec"]["template"]["spec"]["containers"][0]["command"]
        for item in _kubernetes()
        if item["kind"] == "Deployment"
    }
    assert composed == {part: deployed[part] for part in PARTS}
    web = [line[4:] for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("CMD ")]
    assert [json.loads(line) for line in web] == [deployed["web"]]
    # uvicorn would believe what a client says of its address.
    for line in (" ".join(deployed["web"]), (DEPLOY / "gatehouse@.service").read_text(), WEB):
        assert "--no-proxy-headers" in line
    assert [composed[part][composed[part].index("--queues") + 1] for part in PARTS[:-1]] == list(PARTS[:-1])


def test_unit_runs_what_compose_runs(tmp_path: Path) -> None:
    script = re.search(r"ExecStart=/bin/sh -ec '([^']*)'", (DEPLOY / "gatehouse@.service").read_text())
    assert script
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho python $*\n")
    python.chmod(0o755)
    services = _compose()["services"]

    def started(unit: str) -> Ended:
        line = script[1].replace("\\\n", "").replace("$$", "$").replace("%i", unit).replace("%%", "%")
        return run("/bin/sh", "-ec", line, cwd=tmp_path)

    for part in PARTS:
        told = started(part).stdout.replace(f" --hostname {part}@%h", "")
        asked = services[part if part == "beat" else f"worker-{part}"]["command"]
        assert told.split() == asked.split(), part
    assert started("execute-2").stdout == started("execute").stdout.replace("execute@", "execute-2@")
    assert (started("executed").returncode, started("executed").stderr) == (64, "There is no process executed.\n")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze")
def test_unit_file_is_one_that_systemd_takes() -> None:
    verified = run("systemd-analyze", "verify", DEPLOY / "gatehouse@.service")
    assert (verified.returncode, verified.stderr) == (0, "")


def test_alerts_and_dashboard_ask_for_metrics_that_exist(db: None, client: Any, settings: Any) -> None:
    settings.METRICS_TOKEN = "scrape"
    scraped = client.get("/metrics", headers={"Authorization": "Bearer scrape"}).content.decode()
    page = metrics.page()
    assert metrics.PAGE.read_text() == page, "run python -m docs.reference"
    listed = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))
    shown = set(re.findall(r"^# TYPE ((?:gatehouse|delegate)_\w+)", scraped, re.MULTILINE))
    assert {name for name in shown if not name.endswith("_created")} <= listed
    rules = [rule for group in _loaded(DEPLOY / "alerts.yaml")["groups"] for rule in group["rules"]]
    panels = json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    asked = [rule["expr"] for rule in rules] + [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(asked) > 30
    for expression in asked:
        names = re.findall(r"\b(?:gatehouse|delegate)_\w+", expression)
        assert names or expression.startswith("up{")
        assert {name.removesuffix("_bucket") for name in names} <= listed & shown, expression
    headings = {
        re.sub(r"[^\w -]", "", line[3:]).strip().lower().replace(" ", "-")
        for line in (ROOT / "docs/troubleshoot.md").read_text().splitlines()
        if line.startswith("## ")
    }
    assert {rule["annotations"]["see"] for rule in rules} <= {f"docs/troubleshoot.md#{heading}" for heading in headings}


@pytest.mark.ci
@pytest.mark.parametrize(
    "command",
    ["manage.py check", "-m uvicorn config.asgi:application", "-m celery -A config worker", "-m celery -A config beat"],
)
def test_production_names_all_that_is_missing_and_starts_with_what_secrets_writes(command: str, tmp_path: Path) -> None:
    file = tmp_path / "env"
    written = run(ROOT / "bin/secrets", file)
    assert (written.returncode, file.stat().st_mode & 0o777) == (0, 0o600)
    again, text = run(ROOT / "bin/secrets", file), file.read_text()
    assert (again.returncode, again.stderr) == (1, f"{file} is there already and stays as it is.\n")
    env = dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))
    random = [value for value in env.values() if len(value) == 64]
    assert len(set(random)) == 8

    # A folder of a stack counts for nothing.
    (tmp_path / "stack.json").write_text(
        json.dumps({"gatehouse_secret_key": "from-a-file", "database_url": "postgresql:///x"})
    )
    production = of_a_person(GATEHOUSE_ENV="production", GATEHOUSE_DATA=str(tmp_path))
    refused = run(sys.executable, *command.split(), env=production)
    needed = ["DATABASE_URL", "DATABASE_URL_SYSTEM", "REDIS_URL", "GATEHOUSE_HOSTS", "GATEHOUSE_SECRET_KEY"]
    needed += ["GATEHOUSE_LEASE_KEYS", "GATEHOUSE_SEALING_KEYS", "GATEHOUSE_METRICS_TOKEN"]
    assert (refused.returncode, refused.stderr) == (
        1,
        f"Production needs these environment variables: {', '.join(needed)}. See .env.example.\n",
    )
    if command == "manage.py check":
        servers = {name: with_database()[name] for name in ("DATABASE_URL", "DATABASE_URL_SYSTEM", "REDIS_URL")}
        checked = run(
            sys.executable, "manage.py", "check", env=production | env | servers | {"GATEHOUSE_HOSTS": "localhost"}
        )
        assert checked.returncode == 0, checked.stderr


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
