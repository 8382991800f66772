"""Where a tenant has many vectors they are read off an index, and never fewer than there should be."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from apps.console import health
from apps.memory import sql
from apps.memory.embedding import Vector, spelled
from apps.memory.questions import read
from apps.memory.selectors import recall
from apps.memory.services import Meant, fold_tallies
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests import ground
from tests.factories import T0, make_caller, make_tenant
from tests.memory.meanings import DIMENSIONS, endpoint, named
from tests.memory.test_scale import plan_of

MANY = sql.LOOKED_AT + 500
MARK = named("").mark

_FILL = """
with given as (
    select * from unnest(%(vectors)s::text[]) with ordinality as t(vector, n)
), said as (
    insert into memory_observation (tenant_id, author_id, text, domain, confidence, evidence, metadata, occurred_at,
                                    recorded_at)
    select %(tenant)s, %(author)s, 'memory ' || n, '', 1, '[]', '{}', %(now)s, %(now)s from given order by n
    returning id, text
), passages as (
    insert into memory_passage (tenant_id, observation_id, domain, length, recorded_at, embedder)
    select %(tenant)s, id, '', 0, %(now)s, %(mark)s from said
    returning id, observation_id
), kept as (
    insert into memory_vector (tenant_id, passage_id, scope, embedder, embedding)
    select %(tenant)s, p.id, 0, %(mark)s, translate(vector, '[]', '{}')::real[]
    from passages p join said on said.id = p.observation_id join given on said.text = 'memory ' || n
)
insert into memory_tally (tenant_id, scope, observations, patterns, concepts, passages, words)
select %(tenant)s, 0, count(*), 0, 0, count(*), 0 from given
"""


def fill(slug: str, vectors: list[Vector]) -> Caller:
    caller = make_caller(make_tenant(slug))
    given: dict[str, Any] = {"tenant": caller.tenant_id, "author": caller.principal_id, "now": T0, "mark": MARK}
    with acting_as(caller), connection.cursor() as cursor:
        cursor.execute(_FILL, given | {"vectors": [spelled(vector) for vector in vectors]})
    return caller


def around(center: Vector, spread: float, seed: int) -> list[Vector]:
    """Directions near this one, the nearer the less they are spread."""
    chance = np.random.default_rng(seed)
    drawn = center + spread * chance.normal(size=(MANY, DIMENSIONS)).astype(np.float32)
    return list(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


@pytest.fixture
def unindexed(transactional_db: None) -> Iterator[None]:
    yield
    with connection.cursor() as cursor:
        cursor.execute("set role none")
        cursor.execute(f"drop index if exists memory_vector_near_{MARK}")
    connection.close()


@pytest.mark.ci
def test_the_nearest_of_a_tenant_are_found_by_index_though_anothers_are_nearer(unindexed: None, settings: Any) -> None:
    asked = np.eye(1, DIMENSIONS, dtype=np.float32)[0]
    ours = around(-asked, 0.3, seed=1)
    kee = fill("acme", ours)
    fill("globex", around(asked, 0.05, seed=2))
    fold_tallies()
    with pytest.raises(CommandError, match="no embedder"):
        call_command("index_vectors")
    with endpoint(settings):
        assert not finding().ok
        call_command("index_vectors")
        assert finding().ok
    meant = Meant(embedder=MARK, dimensions=DIMENSIONS, vector=spelled(asked))
    order = np.argsort(-np.array(ours) @ asked)
    nearest = [f"memory {number + 1}" for number in order]

    def found() -> list[str]:
        return [hit.text for hit in recall("what", caller=kee, meant=meant, limit=100)]

    with acting_as(kee):
        ground.analyzed("memory_vector")
        narrowed = {"domain": None, "filters": "{}", "as_of": "infinity", "since": "-infinity", "limit": 10}
        given = {"tenant": kee.tenant_id, "scope": 0, "meant": meant.vector, **narrowed}
        given |= sql.asking(read("quokka"), limit=10)
        nodes = plan_of(sql.recall_by_meaning(MARK, DIMENSIONS, narrowed=False), given)
        (scan,) = [node for node in nodes if node.get("Index Name") == f"memory_vector_near_{MARK}"]
        assert scan["Actual Rows"] == 100
        with connection.cursor() as cursor:
            by_index = found()
            # An index that answers too few is no reason to answer too few.
            cursor.execute("set local hnsw.max_scan_tuples = 1")
            each = found()
    assert each == nearest[: len(each)]
    assert len(by_index) == len(each) > 50
    # The index is an approximate one, and has been asked for what it holds farthest from the question.
    assert set(by_index) <= set(nearest[: MANY // 10])


def finding() -> health.Finding:
    with acting_as_system("test"):
        return next(one for one in health.examination() if one.part == "embedder")
