"""Where somebody's words can stand in the registry: what workers say of themselves, which is of no subject."""

from apps.core.erasure import Rows, register

register(
    Rows(
        table="workers_worker",
        columns=[
            "worker_id",
            "endpoint",
            "capabilities",
            "constraints",
            "hints",
            "manifest",
            "tier_reason",
            "probe_fault",
            "drift",
        ],
        redacted={},
    ),
    Rows(
        table="workers_toolversion",
        columns=["name", "description", "input_schema", "output_schema", "side_effects", "effects"],
        redacted={},
    ),
    Rows(table="workers_offer", columns=["name"], redacted={}),
    Rows(table="workers_workerevent", columns=["detail"], redacted={}),
    Rows(table="workers_workersource", columns=["name", "address", "settings", "cursor", "fault"], redacted={}),
    Rows(table="workers_place", columns=["key", "stated", "fault"], redacted={}),
    Rows(table="workers_signingkey", columns=["key_id", "public_key"], redacted={}),
)
