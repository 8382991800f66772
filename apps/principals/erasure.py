"""Where somebody's id can stand among those who act: in names, which are counted and stay."""

from apps.core.erasure import Rows, register

register(
    Rows(table="principals_principal", columns=["name"], redacted={}),
    Rows(table="principals_token", columns=["label", "source_systems"], redacted={}),
)
