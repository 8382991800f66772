"""`manage.py inbox`: the same answers as over the API."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from tests.digests.makers import post, post_grouped, read


def inbox(verb: str, *options: str, principal: str = "Kee", tenant: str = "acme") -> str:
    out = StringIO()
    call_command("inbox", verb, "--principal", principal, "--tenant", tenant, *options, stdout=out)
    return out.getvalue().strip()


def answer(verb: str, *options: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(inbox(verb, *options, "--json"))
    return told


@pytest.fixture
def filled(kee: Caller) -> Caller:
    with acting_as(kee):
        post(kee, title="First")
        for number in range(3):
            post_grouped(kee, title=f"Check {number}")
        post_grouped(kee, title="Check 3", flush_class="immediate")
    return kee


def test_an_inbox_is_read_expanded_acked_and_looked_back_on(filled: Caller) -> None:
    page = answer("read")
    assert [entry["count"] for entry in page["entries"]] == [1, 4]
    item, digest = (entry["token"] for entry in page["entries"])
    assert [one["title"] for one in answer("expand", "--through", digest)["receipts"]] == [
        f"Check {n}" for n in range(4)
    ]
    first = answer("expand", "--through", digest, "--limit", "3")
    assert len(answer("expand", "--through", digest, "--cursor", first["next"])["receipts"]) == 1
    assert answer("ack", "--through", item) == {"acked_entries": 1, "acked_receipts": 1}
    assert answer("ack", "--through", digest) == {"acked_entries": 1, "acked_receipts": 4}
    assert answer("ack", "--through", digest) == {"acked_entries": 0, "acked_receipts": 0}
    assert answer("read")["entries"] == []
    assert [entry["acked_at"] is None for entry in answer("history")["entries"]] == [False, False]


def test_it_prints_lines_for_people(filled: Caller) -> None:
    lines = inbox("read").splitlines()
    assert lines[0].endswith("First  (1)")
    assert lines[1].endswith("4 ci on pr:1  (4)")
    assert lines[2] == "as of 2: 5 visible, 0 in buffers"
    token = lines[1].split()[0]
    assert inbox("expand", "--through", token).splitlines()[0].endswith("github  Check 0")
    assert inbox("ack", "--through", token) == "acked 2 entries, 5 receipts"
    assert [line.split("  ")[-1] for line in inbox("history").splitlines()] == ["immediate, acked", "item, acked"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["ack"], "needs --through"),
        (["expand"], "needs --through"),
        (["ack", "--through", "thr_1"], "thr_1"),
        (["ack", "--through", "ent_999999"], "has no entry"),
        (["expand", "--through", "nonsense"], "nonsense"),
        (["read", "--limit", "0"], "/limit"),
        (["read", "--cursor", "x"], "/cursor"),
        (["history", "--cursor", "x"], "cursor"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_named_and_change_nothing(filled: Caller, options: list[str], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        inbox(*options)
    with acting_as(filled):
        assert read(filled).visible == 5


def test_nobody_reads_of_whom_there_is_none(filled: Caller, tenant: Tenant) -> None:
    with pytest.raises(CommandError, match="no principal 'Hexy'"):
        inbox("read", principal="Hexy")
    with pytest.raises(CommandError, match="no tenant 'globex'"):
        inbox("read", tenant="globex")
