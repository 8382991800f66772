"""Results: inline, artifacts, read in parts; and timelines."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import storages

from apps.core.errors import only
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import selectors
from apps.tasks.models import Artifact
from apps.tasks.services import running
from apps.tasks.shapes import Completion
from tests.factories import make_caller, make_tenant, make_token, refused
from tests.tasks.making import beat, complete, get, lease_one, make_type, number, queue, release


def test_result_is_fetched_and_the_first_time_is_kept(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = queue(kee)
    with acting_as(kee), refused("not_finished"):
        running.fetch_result(caller=kee, task_id=number(task))
    complete(worker, lease_one(worker), {"zz": [1, None], "a": "é"})
    with acting_as(kee):
        first = running.fetch_result(caller=kee, task_id=number(task))
    with acting_as(kee):
        second = running.fetch_result(caller=kee, task_id=number(task))
        opened = selectors.open_pointer(f"inline:{task.task_id}", tenant_id=kee.tenant_id)
    assert (first.content, first.result_pointer) == ({"zz": [1, None], "a": "é"}, f"inline:{task.task_id}")
    assert first.fetched_at == second.fetched_at is not None
    assert opened.decode() == '{"a":"é","zz":[1,null]}'
    assert first.checksum == f"sha256:{hashlib.sha256(opened).hexdigest()}"


def test_result_over_64_kib_becomes_an_artifact(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    inline, large = queue(kee), queue(kee)
    complete(worker, lease_one(worker), "x" * 65_534)
    complete(worker, lease_one(worker), "x" * 65_535)
    with acting_as(kee):
        assert selectors.result(inline.task_id).result_pointer == f"inline:{inline.task_id}"
        found = selectors.result(large.task_id)
        assert found.result_pointer is not None
        assert (found.result_channel, found.content, found.size) == ("artifact", None, 65_537)
        opened = selectors.open_pointer(found.result_pointer, tenant_id=kee.tenant_id)
    assert (len(opened), found.media_type) == (65_537, "application/json")
    assert found.checksum == f"sha256:{hashlib.sha256(opened).hexdigest()}"


def test_artifact_is_stored_once_for_its_tenant(kee: Caller) -> None:
    pointers = {running.store_artifact(tenant_id=kee.tenant_id, content=b"abc", media_type="text/plain") for _ in "12"}
    stranger = make_caller(make_tenant("globex"))
    (pointer,) = pointers
    with acting_as(kee):
        assert Artifact.objects.count() == 1
        assert selectors.open_pointer(pointer, tenant_id=kee.tenant_id) == b"abc"
    with acting_as(stranger), refused("unknown_artifact"):
        selectors.open_pointer(pointer, tenant_id=stranger.tenant_id)


def test_damaged_artifact_is_rewritten_and_not_shown(kee: Caller) -> None:
    pointer = running.store_artifact(tenant_id=kee.tenant_id, content=b"whole", media_type="text/plain")
    place = Path(storages["artifacts"].path(selectors.place_of(kee.tenant_id, pointer.rpartition("-")[2])))
    place.write_bytes(b"wh")
    running.store_artifact(tenant_id=kee.tenant_id, content=b"whole", media_type="text/plain")
    assert place.read_bytes() == b"whole"
    place.write_bytes(b"other")
    with acting_as(kee), refused("artifacts_unavailable"):
        selectors.open_pointer(pointer, tenant_id=kee.tenant_id)


@pytest.mark.parametrize(
    ("refusal", "given"),
    [
        ("invalid", {"pointer": "s3://b/k", "result": 1}),
        ("invalid_pointer", {"pointer": "no scheme"}),
        ("invalid_pointer", {"pointer": "inline:task_1"}),
        ("invalid_pointer", {"pointer": "artifact:sha256-" + "0" * 64}),
        ("invalid_pointer", {"pointer": "artifact:md5-0"}),
        ("artifact_too_large", {"result": "x" * 70_000}),
    ],
)
def test_unusable_result_is_refused(kee: Caller, settings: Any, refusal: str, given: dict[str, Any]) -> None:
    settings.ARTIFACT_MAX_BYTES = 66_000
    with refused(refusal):
        running.prepare(tenant_id=kee.tenant_id, task_id=1, **given)
    with acting_as(kee):
        assert not Artifact.objects.exists()


def test_timeline_has_every_event_in_order(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = queue(kee)
    release(worker, lease_one(worker))
    grant = lease_one(worker)
    beat(worker, grant, percent=10)
    complete(worker, grant)
    with acting_as(kee):
        running.fetch_result(caller=kee, task_id=number(task))
        story = selectors.timeline(task.task_id)
        events = story.events
        assert story.following is None
        first, second = ["leased", "run_released"], ["leased", "progress", "run_succeeded"]
        assert [event.event for event in events] == ["queued", *first, *second, "succeeded", "fetched"]
        assert [event.at for event in events] == sorted(event.at for event in events)


def delivered(kee: Caller, worker: Caller, **result: Any) -> str:
    make_type(kee)
    task = queue(kee)
    grant = lease_one(worker)
    delivery = running.prepare(tenant_id=worker.tenant_id, task_id=number(grant), **result)
    with acting_as(worker):
        completion = Completion(task_id=number(grant), lease_token=grant.lease_token, delivery=delivery)
        only(running.complete_many([(worker, completion)]).answers)
    return task.task_id


def test_result_elsewhere_is_not_read(tenant: Tenant, kee: Caller, worker: Caller, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    task = delivered(kee, worker, pointer=f"file://{tmp_path}/x")
    token = make_token(tenant, "Kee")
    assert get(token, f"tasks/{task}/result")[1]["content"] is None
    status, problem = get(token, f"tasks/{task}/result/content")
    assert (status, problem["code"]) == (409, "unreadable_result")


@pytest.mark.parametrize("size", [10, 100_000, 2_500_000])
def test_result_is_read_in_parts(tenant: Tenant, kee: Caller, worker: Caller, size: int) -> None:
    content = "x" * size
    token = make_token(tenant, "Kee")
    task, whole = delivered(kee, worker, result=content), f'"{content}"'
    read, offset = b"", 0
    while offset is not None:
        status, part = get(token, f"tasks/{task}/result/content?offset={offset}")
        assert (status, part["size"]) == (200, len(whole))
        read += base64.b64decode(part["base64"])
        offset = part["next_offset"]
    assert read.decode() == whole
    assert get(token, f"tasks/{task}/result/content?offset={size + 100}")[1]["base64"] == ""


@pytest.mark.parametrize(("page", "too_much"), [("result/content", "limit=0"), ("timeline", "limit=101")])
def test_only_parties_read_a_task(tenant: Tenant, kee: Caller, worker: Caller, page: str, too_much: str) -> None:
    task = delivered(kee, worker, result=None)
    assert get(make_token(tenant, "Kee"), f"tasks/{task}/{page}")[0] == 200
    assert get(make_token(tenant, "Hexy"), f"tasks/{task}/{page}")[0] == 404
    assert get(make_token(make_tenant("globex")), f"tasks/{task}/{page}")[0] == 404
    assert get(make_token(tenant, "Kee"), f"tasks/{task}/{page}?{too_much}")[0] == 422
    assert get(make_token(tenant, "Kee"), f"tasks/{task}/timeline?cursor=x")[0] == 400


def test_timeline_is_read_in_pages(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = queue(kee).task_id
    for _ in range(5):
        release(worker, lease_one(worker))
    complete(worker, lease_one(worker))
    token = make_token(tenant, "Kee")

    status, whole = get(token, f"tasks/{task}/timeline")
    assert (status, whole["next"]) == (200, None)
    pages, cursor = [], ""
    while cursor is not None:
        _, page = get(token, f"tasks/{task}/timeline?limit=4{cursor and f'&cursor={cursor}'}")
        pages.append(page["events"])
        cursor = page["next"]
    assert [event for page in pages for event in page] == whole["events"]
    assert [sum(event["event"] == "leased" for event in page) for page in pages] == [4, 2]
    assert [page[0]["event"] for page in pages] == ["queued", "leased"]
    assert [page[-1]["event"] for page in pages] == ["run_released", "succeeded"]


def test_timeline_has_heartbeat_and_spend(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = queue(kee).task_id
    grant = lease_one(worker)
    for _ in range(2):
        beat(worker, grant, tokens=5, cost_usd=0.25, message="half")
    beat(worker, grant, tokens=10, cost_usd=0.5)
    with acting_as(kee):
        events = {event.event: event for event in selectors.timeline(task).events}

    assert (events["heartbeat"].run_id, events["heartbeat"].holder) == (1, "W")
    spent = {"tokens": 10, "cost_usd": 0.5}
    assert events["progress"].detail == {"percent": None, "message": "half", "checkpoint": False, "spent": spent}
