"""A DeleGate's knowledge is promoted where its policy says so, once, and else nothing is written."""

import json
import threading

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client

from apps.memory import services
from apps.memory.errors import NotADelegate
from apps.memory.models import Observation, PromotionPolicy
from apps.memory.novelty import says_the_same
from apps.memory.selectors import recall
from apps.memory.services import Promotion, Verdict
from apps.principals.errors import UnknownPrincipal
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, make_caller, make_tenant, make_token
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


def learn(delegate: Caller, text: str = LEARNED, *, domain: str = "builds", confidence: float = 0.7) -> Promotion:
    return services.promote(delegate=delegate, text=text, domain=domain, confidence=confidence, now=T0)


def test_what_the_policy_allows_is_knowledge_at_once(as_kee: Caller, coder: Caller) -> None:
    allow(as_kee)
    promotion = learn(coder)
    assert (promotion.verdict, promotion.observation) == (Verdict.PROMOTED, Observation.objects.get())
    assert Observation.objects.get().author_id == coder.principal_id


def test_without_a_policy_and_outside_of_it_nothing_is_written(as_kee: Caller, coder: Caller) -> None:
    assert learn(coder).verdict == Verdict.NO_POLICY
    allow(as_kee)
    assert learn(coder, domain="people").verdict == Verdict.OTHER_DOMAIN
    assert learn(coder, confidence=0.69).verdict == Verdict.NOT_SURE_ENOUGH
    assert learn(as_kee).verdict == Verdict.NO_POLICY
    allow(as_kee, domains=())
    assert learn(coder).verdict == Verdict.OTHER_DOMAIN
    assert not Observation.objects.exists()


def test_what_memory_says_already_in_other_forms_and_order_is_not_new(as_kee: Caller, coder: Caller) -> None:
    allow(as_kee)
    known = observe(as_kee, "On Mondays the nightly builds of the parser are failing.")
    promotion = learn(coder)
    assert (promotion.verdict, promotion.reason) == (Verdict.KNOWN_ALREADY, f"{known.ref} says the same.")
    assert Observation.objects.count() == 1
    assert learn(coder, "The nightly build of the lexer fails on Tuesdays.").verdict == Verdict.PROMOTED
    allow(as_kee, novel=False)
    assert learn(coder).verdict == Verdict.PROMOTED


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
    for name, refusal in (("Hexy", NotADelegate), ("Nobody", UnknownPrincipal)):
        with pytest.raises(refusal):
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
    assert not says_the_same("", "")


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
    ],
)
def test_what_denies_or_counts_otherwise_does_not_say_the_same(text: str, other: str) -> None:
    assert not says_the_same(text, other)
    assert not says_the_same(other, text)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Deploys never need 2 approvals", "2 approvals are never needed by deploys"),
        ("All deploys of the payments team need two approvals", "Deploys of all payments teams need 2 approvals"),
        ("Deploys don\u2019t need approvals", "Deploys don't need an approval"),
    ],
)
def test_what_denies_and_counts_alike_says_the_same(text: str, other: str) -> None:
    assert says_the_same(text, other)


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
