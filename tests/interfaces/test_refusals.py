"""What a refusal says helps whoever reads it."""

import pytest
from django.test import Client

from apps.principals.models import Tenant
from tests.factories import make_token

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("authorization", ["", "{token}", "Token {token}"])
def test_who_presents_no_bearer_token_is_told_its_form(tenant: Tenant, authorization: str) -> None:
    token = make_token(tenant)
    headers = {"Authorization": authorization.format(token=token)} if authorization else {}
    refused = Client(headers=headers).get("/api/v1/receipts")

    assert (refused.status_code, refused.json()["code"]) == (401, "not_authenticated")
    assert "Authorization: Bearer TOKEN" in refused.json()["detail"]
    assert token not in refused.content.decode()


@pytest.mark.parametrize("content_type", ["", "text/plain"])
def test_a_body_that_is_not_called_json_is_refused_with_what_it_is_to_be_called(
    tenant: Tenant, content_type: str
) -> None:
    client = Client(headers={"Authorization": f"Bearer {make_token(tenant)}"})
    refused = client.post("/api/v1/receipts", b"{}", content_type=content_type)

    assert refused.status_code == 415
    assert "Content-Type: application/json" in refused.json()["detail"]
