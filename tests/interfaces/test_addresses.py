"""Addresses as people type them."""

import pytest
from django.test import Client


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("/", "/admin/"), ("/admin", "/admin/"), ("/api/docs", "/api/docs/"), ("/api/schema", "/api/schema/")],
)
def test_a_short_address_leads_to_the_page_that_is_meant(typed: str, meant: str) -> None:
    answer = Client().get(typed)
    assert (answer.status_code, answer.headers["Location"]) == (302, meant)
    assert Client().post(typed).status_code == 405


def test_a_slash_too_many_is_told() -> None:
    told = Client().get("/api/v1/whoami/")
    assert told.status_code == 404
    assert "without the slash" in told.json()["detail"]
    assert "slash" not in Client().get("/api/v1/nothing/at/all/").json()["detail"]


def test_an_unknown_host_is_answered_with_the_reason() -> None:
    refused = Client().get("/livez", headers={"Host": "elsewhere.example"})
    assert (refused.status_code, refused.headers["Content-Type"]) == (400, "application/problem+json")
    assert refused.json()["code"] == "unknown_host"
    assert "GATEHOUSE_HOSTS" in refused.json()["detail"]
