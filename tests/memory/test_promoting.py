"""A DeleGate's knowledge is promoted where its policy says so, once, and else nothing is written."""

import json
import threading
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client

from apps.memory import services
from apps.memory.models import Memory, PromotionPolicy, Relationship
from apps.memory.selectors import recall
from apps.memory.services import Verdict
from apps.memory.shapes import PromotionOutput
from apps.memory.texts import says_the_same
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, make_caller, make_tenant, make_token
from tests.memory.subjects import ALICE, add, observations, refused
from tests.memory.test_store import observe

LEARNED = "The nightly build of the parser fails on Mondays."


@pytest.fixture
def coder(tenant: Tenant) -> Caller:
    return make_caller(tenant, "coder", Kind.DELEGATE)


def allow(
    author: Caller, *, domains: tuple[str, ...] = ("builds",), threshold: float = 0.7, novel: bool = True
) -> None:
    services.set_promotion_policy(
        author=author, delegate="coder", domains=domains, confidence_threshold=threshold, requires_novel=novel, now=T0
    )


def learn(delegate: Caller, text: str = LEARNED, *, domain: str = "builds", confidence: float = 0.7) -> PromotionOutput:
    return services.promote(delegate=delegate, text=text, domain=domain, confidence=confidence, now=T0)


def test_what_the_policy_allows_is_knowledge_at_once(as_kee: Caller, coder: Caller) -> None:
    allow(as_kee)
    promotion = learn(coder)
    assert (promotion.verdict, promotion.ref) == (Verdict.PROMOTED, observations().get().ref)
    assert observations().get().author_id == coder.principal_id


def test_without_a_policy_and_outside_of_it_nothing_is_written(as_kee: Caller, coder: Caller) -> None:
    assert learn(coder).verdict == Verdict.NO_POLICY
    allow(as_kee)
    assert learn(coder, domain="people").verdict == Verdict.OTHER_DOMAIN
    assert learn(coder, confidence=0.69).verdict == Verdict.NOT_SURE_ENOUGH
    assert learn(as_kee).verdict == Verdict.NO_POLICY
    allow(as_kee, domains=())
    assert learn(coder).verdict == Verdict.OTHER_DOMAIN
    assert not observations().exists()


def test_what_memory_says_already_in_other_forms_and_order_is_not_new(as_kee: Caller, coder: Caller) -> None:
    allow(as_kee)
    known = observe(as_kee, "On Mondays the nightly builds of the parser are failing.")
    promotion = learn(coder)
    assert (promotion.verdict, promotion.reason) == (Verdict.KNOWN_ALREADY, f"{known.ref} says the same.")
    assert observations().count() == 1
    assert learn(coder, "The nightly build of the lexer fails on Tuesdays.").verdict == Verdict.PROMOTED
    allow(as_kee, novel=False)
    assert learn(coder).verdict == Verdict.PROMOTED


def test_what_a_pattern_or_a_concept_says_is_not_new_however_it_is_called(as_kee: Caller, coder: Caller) -> None:
    allow(as_kee)
    name = "weekly review of the whole regression suite and its reports"
    services.store_concept(author=as_kee, name=name, concept_type="system", description=LEARNED, now=T0)
    assert learn(coder).reason == f"concept:{name} says the same."
    turned = "On Mondays the nightly builds of the parser are failing."
    assert learn(coder, turned).reason == f"concept:{name} says the same."
    services.store_concept(author=as_kee, name=name, description="A suite.", now=T0)
    pattern = services.update_pattern(
        author=as_kee, category="ci", pattern_name=name, pattern_text=LEARNED, confidence=0.9, now=T0
    )
    assert [learn(coder, text).reason for text in (LEARNED, turned)] == [f"{pattern.ref} says the same."] * 2


@pytest.mark.parametrize(
    "text", ["It is so", "???", "To be or not to be", "\u6784\u5efa\u5728\u661f\u671f\u4e00\u5f88\u6162"]
)
def test_the_very_same_words_are_not_new_also_where_recall_finds_none_of_them(
    as_kee: Caller, coder: Caller, text: str
) -> None:
    allow(as_kee)
    assert learn(coder, text).verdict == Verdict.PROMOTED
    for number in range(12):
        observe(as_kee, f"Newer: {number}.")
    assert learn(coder, text).verdict == Verdict.KNOWN_ALREADY


def test_what_was_said_so_and_stands_no_more_is_new_again(as_kee: Caller, coder: Caller) -> None:
    allow(as_kee)
    said = learn(coder, "It is so").ref
    services.store_observation(author=as_kee, text="It was so once", supersedes=said, now=T0)
    assert learn(coder, "It is so").verdict == Verdict.PROMOTED


def test_what_says_the_same_is_found_behind_nine_that_come_nearer(as_kee: Caller, coder: Caller) -> None:
    allow(as_kee)
    known = observe(as_kee, "On Mondays the nightly builds of the parser are failing.")
    words = " ".join([*LEARNED.split()] * 4)
    for number in range(9):
        observe(as_kee, f"{words} Ask lexers, linters, grammars, formatters, readers or writers: {number}.")
    assert [hit.ref for hit in recall(LEARNED, caller=coder)][9] == known.ref
    assert learn(coder).reason == f"{known.ref} says the same."


def test_only_delegates_have_policies(as_kee: Caller, tenant: Tenant) -> None:
    make_caller(tenant, "Hexy")
    for name, code in (("Hexy", "not_a_delegate"), ("Nobody", "unknown_principal")):
        with refused(code):
            services.set_promotion_policy(
                author=as_kee, delegate=name, domains=["x"], confidence_threshold=1, requires_novel=True, now=T0
            )
    assert not PromotionPolicy.objects.exists()


def test_the_database_keeps_one_policy_of_possible_thresholds(as_kee: Caller, coder: Caller) -> None:
    allow(as_kee)
    policy = PromotionPolicy.objects.get()
    with pytest.raises(IntegrityError, match="memory_promotionpolicy_threshold"), transaction.atomic():
        PromotionPolicy.objects.update(confidence_threshold=1.1)
    policy.pk = None
    with pytest.raises(IntegrityError, match="memory_promotionpolicy_once"), transaction.atomic():
        policy.save()


def test_of_two_that_learn_the_same_at_once_one_is_new(transactional_db: None) -> None:
    tenant = make_tenant("acme")
    kee, coder = make_caller(tenant), make_caller(tenant, "coder", Kind.DELEGATE)
    with acting_as(kee):
        allow(kee)
    barrier, verdicts = threading.Barrier(4), []

    def run() -> None:
        try:
            barrier.wait(timeout=20)
            with acting_as(coder):
                verdicts.append(learn(coder).verdict)
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(verdicts) == [Verdict.KNOWN_ALREADY] * 3 + [Verdict.PROMOTED]


def test_statements_are_the_same_by_their_words() -> None:
    assert not says_the_same("Tests fail on Mondays", "Tests fail on Tuesdays")
    assert says_the_same("The tests fail on Mondays", "On Mondays the tests are failing")
    assert says_the_same("It is so.", "it is so")
    assert not says_the_same("???", "!!!")
    assert not says_the_same("", "")
    assert not says_the_same("\u200b", "")


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("The nightly build never fails on Mondays", "The nightly build fails on Mondays"),
        ("Deploys don't need approval in the payments team", "Deploys need approval in the payments team"),
        ("Deploys don\u2019t need approval in the payments team", "Deploys do need approval in the payments team"),
        ("Deploys need 2 approvals in the payments team", "Deploys need 3 approvals in the payments team"),
        ("Deploys need two approvals in the payments team", "Deploys need three approvals in the payments team"),
        ("The parser of the compiler takes 1.5 seconds", "The parser of the compiler takes 2.5 seconds"),
        ("Nobody in the payments team reviews deploys", "Somebody in the payments team reviews deploys on Mondays"),
        ("Deploys of the payments team may be undone", "Deploys of the payments team may not be undone"),
        ("Builds take < 5 minutes on the new runners", "Builds take > 5 minutes on the new runners"),
        ("The freezer of the lab is kept at -5 degrees", "The freezer of the lab is kept at 5 degrees"),
        ("\u2705 the nightly build of the parser", "\u274c the nightly build of the parser"),
        ("राम की दुकान सोमवार को बंद है", "राम का दुकान सोमवार को बंद है"),
    ],
)
def test_what_denies_or_counts_otherwise_does_not_say_the_same(text: str, other: str) -> None:
    assert not says_the_same(text, other)
    assert not says_the_same(other, text)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        (
            "The nightly build of the payments service parser fails on Mondays",
            "The nightly build of the payments service parser fails on Tuesdays",
        ),
        (
            "Deploys of the payments team on Fridays are safe for customers",
            "Deploys of the payments team on Fridays are unsafe for customers",
        ),
        (
            "The search service of the platform answers slowly for large repositories",
            "The search service of the platform answers quickly for large repositories",
        ),
        (
            "Approval of Bob is needed to deploy payments to production",
            "Approval of Carol is needed to deploy payments to production",
        ),
        ("Always run the linter before the tests", "Always run the tests before the linter"),
        ("If deploys fail the tests run", "If the tests run deploys fail"),
        ("Tests pass: deploys run", "Deploys run: tests pass"),
        ("Bob pays Alice", "Alice pays Bob"),
        ("The train goes from Ghent to Rome", "The train goes from Rome to Ghent"),
        ("Deploys on Fridays are safe", "Deploys on Fridays are safe if the tests have passed"),
        ("Deploys on Fridays are safe for customers", "Deploys on Fridays are safe only for internal customers"),
        ("Deploys of the payments team were slow", "Deploys of the payments team are slow"),
        ("Deploys must be announced", "Deploys may be announced"),
    ],
)
def test_one_word_or_its_place_makes_another_statement(text: str, other: str) -> None:
    assert not says_the_same(text, other)
    assert not says_the_same(other, text)


def test_what_contradicts_memory_by_one_word_is_knowledge_too(as_kee: Caller, coder: Caller) -> None:
    allow(as_kee)
    observe(as_kee, "The nightly build of the payments service parser fails on Mondays")
    learned = learn(coder, "The nightly build of the payments service parser fails on Tuesdays")
    assert learned.verdict == Verdict.PROMOTED


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Deploys never need 2 approvals", "Deploys never need two approvals."),
        ("All deploys of the payments team need two approvals", "All deploys of payments teams need 2 approvals"),
        ("Deploys don\u2019t need approvals", "Deploys don't need an approval"),
        ("Deploys do not need approvals", "Deploys don't need an approval"),
        ("Deploy if the tests pass", "If the tests pass: deploy!"),
        ("The train goes from Ghent to Rome", "To Rome the train goes from Ghent"),
    ],
)
def test_the_same_words_in_other_forms_say_the_same(text: str, other: str) -> None:
    assert says_the_same(text, other)
    assert says_the_same(other, text)


def test_policies_are_set_and_used_over_http(tenant: Tenant) -> None:
    admin = make_token(tenant, "Admin", scopes=[Scope.ADMIN, Scope.MEMORY])
    coder = make_token(tenant, "coder", Kind.DELEGATE)

    def call(token: str, method: str, path: str, body: object) -> tuple[int, dict[str, object]]:
        answer = Client().generic(
            method,
            f"/api/v1/memory/{path}",
            json.dumps(body),
            content_type="application/json",
            headers={"Authorization": f"Bearer {token}"},
        )
        return answer.status_code, answer.json()

    said = {"observation": LEARNED, "domain": "builds"}
    assert call(coder, "POST", "promotions", said)[1]["verdict"] == "no_policy"
    assert call(coder, "PUT", "promotion-policies/coder", {"domains": ["builds"]})[0] == 403
    status, policy = call(admin, "PUT", "promotion-policies/coder", {"domains": ["builds"]})
    assert (status, policy["confidence_threshold"], policy["requires_novel"]) == (200, 0.8, True)
    assert call(coder, "POST", "promotions", said)[1]["verdict"] == "promoted"


WRITES = {
    "memory/observations": {"observation": LEARNED, "domain": "builds"},
    "memory/patterns": {"category": "builds", "pattern_name": "mondays", "pattern_text": LEARNED},
    "memory/concepts": {"name": "nightly build", "description": LEARNED},
    "memory/relationships": {"from_concept": "nightly build", "to_concept": "monday", "rel_type": "fails_on"},
    f"subjects/{ALICE}/items": {"fact": "Breaks the nightly build."},
}


def post(token: str, path: str, body: object) -> tuple[int, dict[str, Any]]:
    answer = Client().post(
        f"/api/v1/{path}", body, content_type="application/json", headers={"Authorization": f"Bearer {token}"}
    )
    return answer.status_code, answer.json()


@pytest.mark.parametrize("path", WRITES)
def test_a_delegate_writes_no_knowledge_past_its_policy(tenant: Tenant, as_kee: Caller, path: str) -> None:
    add(as_kee)
    token = make_token(tenant, "coder", Kind.DELEGATE)
    status, refusal = post(token, path, WRITES[path])
    assert (status, refusal["code"]) == (403, "promotion_needed")
    assert not Memory.objects.exists()
    assert not Relationship.objects.exists()
    assert post(make_token(tenant, "Lee"), path, WRITES[path])[0] == 201


def test_a_delegate_writes_its_trace_in_the_place_of_traces_alone(tenant: Tenant, as_kee: Caller) -> None:
    token = make_token(tenant, "coder", Kind.DELEGATE)
    traced = {"observation": "Delegated to the analyzer.", "domain": "delegation_trace"}
    known = observe(as_kee, LEARNED, domain="builds")
    status, trace = post(token, "memory/observations", traced)
    assert status == 201
    assert post(token, "memory/observations", traced | {"supersedes": trace["ref"]})[0] == 201
    for ref, answer in ((known.ref, (403, "promotion_needed")), ("observation:1000000", (404, "unknown_memory"))):
        status, refusal = post(token, "memory/observations", traced | {"supersedes": ref})
        assert (status, refusal["code"]) == answer
    assert observations().count() == 3
    assert observations().get(pk=known.pk).superseded_at is None
