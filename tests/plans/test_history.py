"""What past plans teach, on small sets of plans whose tools have opaque names."""

import numpy as np

from apps.plans.history import History, Past, learn

_ASKED = {
    "t-invoice": ("send the invoice to the client", "bill the customer for the work"),
    "t-photo": ("resize the photo for the site", "make the picture smaller"),
    "t-mail": ("write a mail to the team", "tell my colleagues by mail"),
}
PLANS = [
    Past(request=f"{text} {extra}", tools=(uid,))
    for uid, texts in _ASKED.items()
    for text in texts
    for extra in ("", "please", "today", "for Kim", "before noon", "again")
] + [
    Past(
        request=f"resize the photo and mail it {extra}",
        tools=("t-photo", "t-mail"),
        links=frozenset({("t-photo", "t-mail")}),
    )
    for extra in ("", "to Kim", "now", "to the team")
]


def nothing(_text: str) -> dict[str, float]:
    return {}


def tools(model: History, text: str) -> list[str]:
    return sorted(uid for uid, _ in model.likely(text, {}).tools)


def test_requests_come_to_the_tools_that_served_such_words() -> None:
    model = learn(PLANS, nothing)

    assert tools(model, "please bill that customer") == ["t-invoice"]
    assert tools(model, "mail the resized photo to the team") == ["t-mail", "t-photo"]
    assert model.likely("water the flowers", {}).tools == ()


def test_order_is_that_of_past_plans_whatever_is_mentioned_first() -> None:
    model = learn(PLANS, nothing)

    assert model.ordered({"t-mail": 0, "t-photo": 5}) == ["t-photo", "t-mail"]
    assert model.ordered({"t-mail": 0, "t-invoice": 5}) == ["t-mail", "t-invoice"]
    assert (model.links("t-photo", "t-mail"), model.links("t-mail", "t-invoice")) == (1.0, None)


def test_plans_that_mostly_use_tools_of_their_own_say_nothing() -> None:
    rare = [Past(request=f"send the invoice of shop {number}", tools=(f"t-{number}",)) for number in range(len(PLANS))]

    assert learn(PLANS[:18], nothing).likely("send the invoice to the client", {}).tools
    assert learn([*rare, *PLANS[:18]], nothing).likely("send the invoice to the client", {}).tools == ()


def test_stored_model_says_the_same() -> None:
    model = learn(PLANS, nothing)
    again = History.loads(model.dumps())

    assert model.dumps() == again.dumps()
    assert model.likely("bill the customer", {}) == again.likely("bill the customer", {})


def test_one_plan_is_enough_to_learn_from() -> None:
    model = learn(PLANS[:1], nothing)

    assert model.requests == 1
    assert np.isfinite(model.likely("send the invoice", {}).confidence)
