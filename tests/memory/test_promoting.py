"""Promotion: what a DeleGate may store by its policy, and what it may store without."""

from typing import Any

import pytest

from apps.memory import services
from apps.memory.models import Memory, PromotionPolicy, Relationship
from apps.memory.services import Verdict
from apps.memory.shapes import PromotionOutput
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, ask, make_caller, make_token, refused
from tests.memory.subjects import ALICE, add, observations, observe, revise
from tests.waiters import acting, at_once

LEARNED = "The nightly build of the parser fails on Mondays."


def allow(author: Caller, delegate: str = "coder", **changes: Any) -> None:
    policy = {"domains": ("builds",), "confidence_threshold": 0.7, "requires_novel": True, **changes}
    services.set_promotion_policy(author=author, delegate=delegate, now=T0, **policy)


def learn(delegate: Caller, text: str = LEARNED, *, domain: str = "builds", confidence: float = 0.7) -> PromotionOutput:
    return services.promote(delegate=delegate, text=text, domain=domain, confidence=confidence, now=T0)


def test_only_what_the_policy_allows_is_stored(as_kee: Caller, coder: Caller) -> None:
    assert learn(coder).verdict == Verdict.NO_POLICY
    allow(as_kee)
    assert learn(coder, domain="people").verdict == Verdict.OTHER_DOMAIN
    assert learn(coder, confidence=0.69).verdict == Verdict.NOT_SURE_ENOUGH
    assert learn(as_kee).verdict == Verdict.NO_POLICY
    promotion = learn(coder)
    stored = observations().get()
    assert (promotion.verdict, promotion.ref, stored.author_id) == (Verdict.PROMOTED, stored.ref, coder.principal_id)
    allow(as_kee, domains=())
    assert learn(coder).verdict == Verdict.OTHER_DOMAIN
    assert observations().count() == 1


def test_text_that_memory_holds_is_not_novel(as_kee: Caller, coder: Caller) -> None:
    allow(as_kee)
    known = observe(as_kee, "The nightly build of the parser  FAILS on Mondays")
    promotion = learn(coder)
    assert (promotion.verdict, promotion.reason) == (Verdict.KNOWN_ALREADY, f"{known.ref} has the same text.")
    assert observations().count() == 1
    for other in (LEARNED.replace("fails", "never fails"), LEARNED.replace("Mondays", "Tuesdays")):
        assert learn(coder, other).verdict == Verdict.PROMOTED
    allow(as_kee, requires_novel=False)
    assert learn(coder).verdict == Verdict.PROMOTED


def test_text_of_a_pattern_or_concept_is_not_novel_under_any_name(as_kee: Caller, coder: Caller) -> None:
    allow(as_kee)
    name = "weekly review of the whole regression suite and its reports"
    for description in (LEARNED, "A suite."):
        known = services.store_concept(author=as_kee, name=name, description=description, now=T0)
        if description != LEARNED:
            known = revise(as_kee, LEARNED, pattern_name=name)
        for text in (LEARNED, LEARNED.upper()):
            assert learn(coder, text).reason == f"{known.ref} has the same text."


@pytest.mark.parametrize("text", ["It is so", "???", "\u6784\u5efa\u5728\u661f\u671f\u4e00\u5f88\u6162"])
def test_exact_text_is_known_though_recall_does_not_find_it(as_kee: Caller, coder: Caller, text: str) -> None:
    allow(as_kee)
    said = learn(coder, text)
    assert said.verdict == Verdict.PROMOTED
    for number in range(12):
        observe(as_kee, f"Newer: {number}.")
    assert learn(coder, text).verdict == Verdict.KNOWN_ALREADY
    observe(as_kee, "It was so once", supersedes=said.ref)
    assert learn(coder, text).verdict == Verdict.PROMOTED


def test_only_delegates_have_policies(as_kee: Caller, tenant: Tenant) -> None:
    make_caller(tenant, "Hexy")
    for name, code in (("Hexy", "not_a_delegate"), ("Nobody", "unknown_principal")):
        with refused(code):
            services.set_promotion_policy(
                author=as_kee, delegate=name, domains=["x"], confidence_threshold=1, requires_novel=True, now=T0
            )
    assert not PromotionPolicy.objects.exists()


def test_of_rivals_with_the_same_text_one_is_novel(transactional_db: None, kee: Caller, coder: Caller) -> None:
    with acting_as(kee):
        allow(kee)
    verdicts = at_once(*[acting(coder, lambda: learn(coder).verdict)] * 4)
    assert sorted(map(str, verdicts)) == [Verdict.KNOWN_ALREADY] * 3 + [Verdict.PROMOTED]


WRITES = {
    "memory/observations": {"observation": LEARNED, "domain": "builds"},
    "memory/patterns": {"category": "builds", "pattern_name": "mondays", "pattern_text": LEARNED},
    "memory/concepts": {"name": "nightly build", "description": LEARNED},
    "memory/relationships": {"from_concept": "nightly build", "to_concept": "monday", "rel_type": "fails_on"},
    f"subjects/{ALICE}/items": {"fact": "Breaks the nightly build."},
}


def test_policies_are_set_and_used_over_http(tenant: Tenant) -> None:
    admin = make_token(tenant, "Admin", scopes=[Scope.ADMIN, Scope.MEMORY])
    coder = make_token(tenant, "coder", Kind.DELEGATE)
    said, policy = {"observation": LEARNED, "domain": "builds"}, {"domains": ["builds"]}
    assert ask("POST", "memory/promotions", coder, said)[1]["verdict"] == "no_policy"
    assert ask("PUT", "memory/promotion-policies/coder", coder, policy)[0] == 403
    status, stored = ask("PUT", "memory/promotion-policies/coder", admin, policy)
    assert (status, stored["delegate"]) == (200, "coder")
    assert (stored["confidence_threshold"], stored["requires_novel"]) == (0.8, True)
    assert ask("POST", "memory/promotions", coder, said)[1]["verdict"] == "promoted"


@pytest.mark.parametrize("path", WRITES)
def test_delegate_writes_no_knowledge_by_itself(tenant: Tenant, as_kee: Caller, path: str) -> None:
    add(as_kee)
    token = make_token(tenant, "coder", Kind.DELEGATE)
    status, refusal = ask("POST", path, token, WRITES[path])
    assert (status, refusal["code"]) == (403, "promotion_needed")
    assert not Memory.objects.exists()
    assert not Relationship.objects.exists()
    assert ask("POST", path, make_token(tenant, "Lee"), WRITES[path])[0] == 201


def test_trace_of_a_delegate_supersedes_traces_only(tenant: Tenant, as_kee: Caller) -> None:
    token = make_token(tenant, "coder", Kind.DELEGATE)
    traced = {"observation": "Delegated to the analyzer.", "domain": "delegation_trace"}
    known = observe(as_kee, LEARNED, domain="builds")
    status, trace = ask("POST", "memory/observations", token, traced)
    assert status == 201
    assert ask("POST", "memory/observations", token, traced | {"supersedes": trace["ref"]})[0] == 201
    for ref, answer in ((known.ref, (403, "promotion_needed")), ("observation:1000000", (404, "unknown_memory"))):
        status, refusal = ask("POST", "memory/observations", token, traced | {"supersedes": ref})
        assert (status, refusal["code"]) == answer
    assert observations().count() == 3
    assert observations().get(pk=known.pk).superseded_at is None
