"""Secrets at rest."""

import pytest
from pytest_django import Settings

from apps.core.sealing import SealBroken, seal, unseal


def test_what_is_sealed_can_be_opened_and_not_be_read() -> None:
    sealed = seal("whsec_ünlock")
    assert unseal(sealed) == "whsec_ünlock"
    assert "nlock" not in sealed
    assert seal("whsec_ünlock") != sealed


def test_a_retired_key_still_opens_and_no_longer_seals(settings: Settings) -> None:
    sealed = seal("secret")
    settings.SEALING_KEYS = ["new", *settings.SEALING_KEYS]
    assert unseal(sealed) == "secret"
    sealed_anew = seal("secret")
    settings.SEALING_KEYS = ["new"]
    assert unseal(sealed_anew) == "secret"
    with pytest.raises(SealBroken):
        unseal(sealed)
