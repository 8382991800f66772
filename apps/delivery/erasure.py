"""What deliveries lose when a subject is forgotten."""

from apps.core.erasure import Rows, register

register(Rows(table="delivery_delivery", redacted={"said": "null"}))
