"""Where somebody's words can stand in what wakes agents."""

from apps.core.erasure import Rows, register

register(
    Rows(table="activation_target", columns=["url", "stopped_reason"], redacted={}),
    Rows(table="activation_dispatch", columns=["result"], redacted={}),
)
