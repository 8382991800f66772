"""What memory loses when a subject is forgotten, beside the subject's own rows (see services.forget)."""

from apps.core.erasure import Rows, register, skip
from apps.memory import services

register(
    Rows(table="memory_session", remove=services.forget_sessions),
    Rows(
        table="memory_subject",
        # What a subject says of another one. Its own key and names stay.
        redacted={
            "learning_level": "case when to_jsonb(learning_level) = %(needle)s::jsonb then '' else learning_level end",
            "domains": "array_remove(domains, %(needle)s::jsonb #>> '{}')",
            "preferences": "(select coalesce(jsonb_object_agg(key, value), '{}') from jsonb_each(preferences)"
            " where strpos(jsonb_build_array(key, value)::text, %(needle)s) = 0)",
        },
        then=lambda _, numbers: services.revise_subjects(numbers),
    ),
    Rows(table="memory_memory", remove=services.forget_memories),
    Rows(table="memory_revision"),
    Rows(table="memory_relationship"),
)
skip("memory_searchterm", "memory_termfrequency")
