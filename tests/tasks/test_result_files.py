"""Results that are files, and results read in parts."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import services
from tests.factories import make_caller, make_tenant, make_token
from tests.tasks.making import lease_one, make_type, queue
from tests.tasks.test_http import get


@pytest.fixture
def root(tmp_path: Path, settings: Any) -> Path:
    settings.RESULT_FILES = tmp_path / "results"
    own = tmp_path / "results" / "acme"
    own.mkdir(parents=True)
    return own


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def delivered(kee: Caller, worker: Caller, **result: Any) -> str:
    make_type(kee)
    task = queue(kee)
    grant = lease_one(worker)
    delivery = services.prepare(tenant_id=worker.tenant_id, task_id=grant.task_id, **result)
    with acting_as(worker):
        services.complete(worker=worker, task_id=grant.task_id, lease_token=grant.lease_token, delivery=delivery)
    return task.task_id


def test_a_file_in_the_tenants_folder_is_content(tenant: Tenant, kee: Caller, worker: Caller, root: Path) -> None:
    content = b'{"files": 12}'
    (root / "a b.json").write_bytes(content)
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    pointer = f"file://{root}/a%20b.json"
    task = delivered(kee, worker, pointer=pointer, checksum=checksum)
    token = make_token(tenant, "Kee")
    status, found = get(token, f"tasks/{task}/result")
    assert (status, found["content"], found["result_pointer"]) == (200, {"files": 12}, pointer)
    (root / "a b.json").write_bytes(b'{"files": 13}')
    assert get(token, f"tasks/{task}/result")[1]["content"] is None


@pytest.mark.parametrize(
    "name", ["../globex/secret", "link", "linked/secret", "nothing", "", "%2e%2e/globex/secret", "secret%00", "%ff"]
)
def test_nothing_outside_of_it_is(tenant: Tenant, kee: Caller, worker: Caller, root: Path, name: str) -> None:
    other = root.parent / "globex"
    other.mkdir()
    (other / "secret").write_text("secret")
    (root / "link").symlink_to(other / "secret")
    (root / "linked").symlink_to(other)
    task = delivered(kee, worker, pointer=f"file://{root}/{name}")
    token = make_token(tenant, "Kee")
    status, found = get(token, f"tasks/{task}/result")
    assert (status, found["content"]) == (200, None)
    assert get(token, f"tasks/{task}/result/content")[1]["code"] == "unknown_file"


def test_no_file_is_read_where_no_folder_is_named(tenant: Tenant, kee: Caller, worker: Caller, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    task = delivered(kee, worker, pointer=f"file://{tmp_path}/x")
    token = make_token(tenant, "Kee")
    assert get(token, f"tasks/{task}/result")[1]["content"] is None
    status, problem = get(token, f"tasks/{task}/result/content")
    assert (status, problem["code"]) == (409, "unreadable_result")


@pytest.mark.parametrize("size", [10, 100_000, 2_500_000])
def test_a_result_is_read_in_parts_wherever_it_is(
    tenant: Tenant, kee: Caller, worker: Caller, root: Path, size: int
) -> None:
    content = "x" * size
    (root / "big").write_text(content)
    token = make_token(tenant, "Kee")
    for task, whole in (
        (delivered(kee, worker, result=content), f'"{content}"'),
        (delivered(kee, worker, pointer=f"file:{root}/big"), content),
    ):
        read, offset = b"", 0
        while offset is not None:
            status, part = get(token, f"tasks/{task}/result/content?offset={offset}")
            assert (status, part["size"]) == (200, len(whole))
            read += base64.b64decode(part["base64"])
            offset = part["next_offset"]
        assert read.decode() == whole
        assert get(token, f"tasks/{task}/result/content?offset={size + 100}")[1]["base64"] == ""


def test_a_result_in_parts_is_for_the_tasks_parties(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    task = delivered(kee, worker, result=1)
    assert get(make_token(tenant, "Hexy"), f"tasks/{task}/result/content")[0] == 404
    assert get(make_token(make_tenant("globex")), f"tasks/{task}/result/content")[0] == 404
    assert get(make_token(tenant, "Kee"), f"tasks/{task}/result/content?limit=0")[0] == 422


def test_a_file_of_another_machine_is_not_read(tenant: Tenant, kee: Caller, worker: Caller, root: Path) -> None:
    (root / "x").write_text("x")
    task = delivered(kee, worker, pointer=f"file://elsewhere{root}/x")
    assert get(make_token(tenant, "Kee"), f"tasks/{task}/result/content")[1]["code"] == "unknown_file"


def test_a_file_that_no_one_may_open_is_as_one_that_is_not_there(
    tenant: Tenant, kee: Caller, worker: Caller, root: Path
) -> None:
    (root / "folder").mkdir()
    task = delivered(kee, worker, pointer=f"file://{root}/folder")
    assert get(make_token(tenant, "Kee"), f"tasks/{task}/result/content")[1]["code"] == "unknown_file"
    complete_again = delivered(kee, worker, result=None)
    assert get(make_token(tenant, "Kee"), f"tasks/{complete_again}/result/content")[1]["size"] == 4
