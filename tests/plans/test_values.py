"""The tokens and typed values of a request, and what the params of tools take of them."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from apps.plans.catalogue import Tool
from apps.plans.local.params import Param, coerced, fits, params_of
from apps.plans.local.values import Found, Kind, read

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)  # a Tuesday


def found(text: str) -> set[tuple[object, ...]]:
    """Kind and value of all that is found, with the role where there is one."""
    return {
        (one.kind.value, one.value, one.role) if one.role else (one.kind.value, one.value)
        for one in read(text, NOW).found
    }


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ('write "it\'s done"', "quoted", "it's done"),
        ("open https://a.example/b?c=d, please", "url", "https://a.example/b?c=d"),
        ("load s3://lake/raw/", "url", "s3://lake/raw/"),
        ("mail ann.b+c@shop.example!", "email", "ann.b+c@shop.example"),
        ("show /srv/app/main.py", "path", "/srv/app/main.py"),
        ("install @scope/package", "path", "@scope/package"),
        ("all **/*.py files", "glob", "**/*.py"),
        ("add README.md", "file", "README.md"),
        ("cite doi:10.1038/s41586-023-0611-2.", "id", "10.1038/s41586-023-0611-2"),
        ("close acme/shop#42", "number_ref", 42),
        ("who came on Thursday the 19th", "date", "2026-11-19"),
        ("commit 3f2a9c1", "id", "3f2a9c1"),
        ("template email_1", "id", "email_1"),
        ("pay to DE89 3704 0044 0532 0130 00", "id", "DE89 3704 0044 0532 0130 00"),
        ("page 1f3c9a7be2d04c5f8a6b7c8d9e0f1a2b", "uuid", "1f3c9a7be2d04c5f8a6b7c8d9e0f1a2b"),
        ("ping 10.0.0.1", "ip", "10.0.0.1"),
        ("call (415) 555-2671", "phone", "(415) 555-2671"),
        ("run SELECT * FROM a WHERE b = 3", "sql", "SELECT * FROM a WHERE b = 3"),
        ('set {"a": {"b": 1}}', "json", '{"a": {"b": 1}}'),
        ("what is (3 + 4) * 2", "expression", "(3 + 4) * 2"),
        ("time in America/New_York", "timezone", "America/New_York"),
        ("translate it to French", "language", "French"),
        ("holidays in the US", "country", "US"),
        ("branch fix-login", "slug", "fix-login"),
        ("branch release/2.4", "version", "release/2.4"),
        ("on 2026-12-01", "date", "2026-12-01"),
        ("on 25.12.2026", "date", "2026-12-25"),
        ("on 12/25/2026", "date", "2026-12-25"),
        ("Nov 25, 2027", "date", "2027-11-25"),
        ("on the 5th", "date", "2026-12-05"),
        ("call 0171 5550198", "phone", "0171 5550198"),
        ("drop _acme.fern.net", "domain", "_acme.fern.net"),
        ("yesterday's", "date", "2026-11-23"),
        ("the day after tomorrow", "date", "2026-11-26"),
        ("on Friday", "date", "2026-11-27"),
        ("last fri", "date", "2026-11-20"),
        ("track a run on Friday", "date", "2026-11-20"),
        ("3 days ago", "date", "2026-11-21"),
        ("in two weeks", "date", "2026-12-08"),
        ("2026-12-01 15:30", "datetime", "2026-12-01T15:30:00Z"),
        ("2026-12-01T15:30:00+02:00", "datetime", "2026-12-01T15:30:00+02:00"),
        ("tomorrow at 9", "datetime", "2026-11-25T09:00:00Z"),
        ("Friday, 5:30 p.m.", "datetime", "2026-11-27T17:30:00Z"),
        ("tomorrow at 12.30", "datetime", "2026-11-25T12:30:00Z"),
        ("scan '/srv/app'", "path", "/srv/app"),
        ("tonight at 8", "datetime", "2026-11-24T20:00:00Z"),
        ("quarter to 7 pm", "time", "18:45"),
        ("half past seven in the evening", "time", "19:30"),
        ("nine and a half hours", "number", 9.5),
        ("at the end of march", "date", "2027-03-31"),
        ("logged at the end of december", "date", "2025-12-31"),
        ("at 5pm", "datetime", "2026-11-24T17:00:00Z"),
        ("on thursday 8.30", "datetime", "2026-11-26T08:30:00Z"),
    ],
)
def test_value_is_found(text: str, kind: str, value: object) -> None:
    assert (kind, value) in found(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("twelve files", {("integer", 12)}),
        ("twenty-five files", {("integer", 25), ("slug", "twenty-five")}),
        ("a dozen eggs", {("integer", 12)}),
        ("1.500 EUR", {("integer", 1500), ("money", 1500), ("currency", "EUR")}),
        ("invoice 2024-117", {("id", "2024-117")}),
        ("object 1987.0042", {("number", 1987.0042), ("id", "1987.0042")}),
        ("which one is it", set()),
        ("1.5k files", {("integer", 1500)}),
        ("5 or -7", {("integer", 5), ("integer", -7)}),
        ("$40", {("integer", 40), ("money", 40), ("currency", "USD")}),
        ("40 euros", {("integer", 40), ("money", 40), ("currency", "EUR")}),
        ("45 minutes", {("integer", 45), ("duration", 2700), ("unit", "minutes")}),
        ("half an hour", {("number", 0.5), ("duration", 1800), ("unit", "hour")}),
        ("1h30m", {("duration", 5400)}),
        (
            "10 pounds",
            {(kind, 10) for kind in ("integer", "money", "quantity")} | {("currency", "GBP"), ("unit", "pounds")},
        ),
        ("between 5 and 10 files", {("integer", 5, "start"), ("integer", 10, "end")}),
        ("pages 3-5", {("integer", 3, "start"), ("integer", 5, "end")}),
        ("resize to 640x480", {("id", "640x480"), ("integer", 640, "left"), ("integer", 480, "right")}),
        ("acme/shop", {("repo", "acme/shop"), ("slug", "acme", "left"), ("slug", "shop", "right")}),
        ("shop.orders", {("dotted", "shop.orders"), ("slug", "shop", "left"), ("slug", "orders", "right")}),
    ],
)
def test_numbers_and_pairs(text: str, expected: set[tuple[object, ...]]) -> None:
    assert found(text) == expected


def test_units_belong_to_both_ends_of_a_range() -> None:
    values = [one for one in read("from 10 to 20 EUR", NOW).found if one.kind is Kind.INTEGER]
    assert [(one.value, one.role, one.unit) for one in values] == [(10, "start", "EUR"), (20, "end", "EUR")]
    assert ("money", 20) not in found("from 10 to 20 EUR")


@pytest.mark.parametrize("text", ["an hour and a half", "90-minute walk", "1 hour and 30 mins", "1h 30m", "1h30"])
def test_durations_are_seconds(text: str) -> None:
    assert ("duration", 5400) in found(text)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("between 2026-01-01 and 2026-01-31", "2026-01-01", "2026-01-31"),
        ("from Monday to Friday", "2026-11-30", "2026-12-04"),
        ("from the 1st to the 15th of November", "2026-11-01", "2026-11-15"),
        ("from the 1st of November to the 15th", "2026-11-01", "2026-11-15"),
        ("from 3 to 17 July this year", "2026-07-03", "2026-07-17"),
        ("March 3-7, 2027", "2027-03-03", "2027-03-07"),
        ("from 10 Dec to 3 Jan", "2026-12-10", "2027-01-03"),
        ("from March to May 2025", "2025-03-01", "2025-05-31"),
        ("last week", "2026-11-16", "2026-11-22"),
        ("in March", "2026-03-01", "2026-03-31"),
        ("Q3 last year", "2025-07-01", "2025-09-30"),
        ("in the third quarter", "2026-07-01", "2026-09-30"),
        ("the last 7 days", "2026-11-17", "2026-11-24"),
        ("10am-2pm", "10:00", "14:00"),
        ("from 11 to 1 in the afternoon", "11:00", "13:00"),
    ],
)
def test_periods_have_two_ends(text: str, start: str, end: str) -> None:
    assert {one[1:] for one in found(text) if one[0] in ("date", "time")} == {(start, "start"), (end, "end")}
    assert ("period", f"{start}/{end}") in found(text)


@pytest.mark.parametrize(
    "text",
    [
        "on 3/4/2026",
        "on 31 February",
        "every Monday",
        "may I march on",
        "the sun",
        "in 9999 years",
        "on 2026-13-45",
        "sell at 4.50 each",
    ],
)
def test_unsure_dates_are_not_read(text: str) -> None:
    assert not {one for one in found(text) if one[0] in ("date", "datetime", "period", "time")}


def test_numbers_within_dates_are_no_values_and_a_period_may_have_one_end() -> None:
    assert found("since Monday") == {("date", "2026-11-23", "start")}
    assert found("since the 16th") == {("date", "2026-11-16", "start")}
    assert ("datetime", "2026-11-27T09:00:00Z", "start") in found("Friday from 9 to 10")
    assert ("datetime", "2026-11-24T22:00:00Z", "end") in found("until 10 tonight")
    assert ("integer", 7) in found("the last 7 days")
    assert ("integer", 3, "start") in found("from 3 to 5 stars this month")


def test_split_date_time_names_its_places() -> None:
    reading = read("lunch tomorrow with Ann at 1pm", NOW)
    (one,) = (one for one in reading.found if one.kind is Kind.DATETIME)
    assert [reading.tokens[place].text for place in sorted(one.places)] == ["tomorrow", "1pm"]


WORDS = """
a at to from and between in last next the since 3 5 12 1,200 1.5 k % $ € EUR 10am 5:30 pm May Friday
tomorrow week hours half one dozen #4 #a @b acme / shop . - x * ' " ( ) { } [ ] v1 a.b a/b /srv/a *.py
a_1 2026-01-31 31.12.2026 Q3 ago
"""
TEXTS = st.text(max_size=80) | st.lists(st.sampled_from(WORDS.split()), max_size=14).map(" ".join)


@given_any(TEXTS, st.datetimes(timezones=st.just(UTC)))
def test_reading_any_text(text: str, now: datetime) -> None:
    reading = read(text, now)
    assert reading == read(text, now)
    at = 0
    for place, token in enumerate(reading.tokens):
        assert token.place == place
        assert not text[at : token.start].strip()
        assert text[token.start : token.end] == token.text
        at = token.end
    assert not text[at:].strip()
    for one in reading.found:
        assert isinstance(one, Found)
        assert 0 <= one.first <= one.last < len(reading.tokens)
        assert all(0 <= place < len(reading.tokens) for place in one.places)


@pytest.mark.parametrize(
    "part", ["'", "«", "a.", "a/", "{a:", "{", "(", "1+", "SELECT ", "1 to ", "a_", "-", "at 9 on Friday ", "*"]
)
def test_long_requests_are_read_in_time(part: str) -> None:
    begin = time.process_time()
    read(part * (4000 // len(part)), NOW)
    assert time.process_time() - begin < 1


TEXT = {"type": "string"}
NUMBER = {"type": "number"}
INTEGER = {"type": "integer"}
DAY = {"type": "string", "format": "date"}


def params(schema: dict[str, Any], description: str = "") -> dict[str, Param]:
    tool = Tool(uid="t", name="tool", description=description, input_schema=schema, output_schema={})
    return {param.name: param for param in params_of(tool)}


def param(name: str, schema: dict[str, Any], *siblings: str) -> Param:
    return params({"properties": {name: schema, **dict.fromkeys(siblings, TEXT)}})[name]


def given(one: Param, text: str) -> list[tuple[float, Any]]:
    """How well each value of a text fits a param and what it becomes there, best first."""
    scored = [(fits(one, value), coerced(one, value)) for value in read(text, NOW).found if fits(one, value)]
    return sorted(scored, key=lambda pair: -pair[0])


def test_journey_begins_at_a_departure_and_a_stay_at_an_arrival() -> None:
    journeys = [(f"departure{end}", f"arrival{end}", TEXT) for end in ("", "_airport", "_station")]
    stays = [(f"arrival{end}", f"departure{end}", DAY) for end in ("", "_date")]
    for first, second, schema in (*journeys, *stays):
        assert (param(first, schema, second).side, param(second, schema, first).side) == ("start", "end")
    assert param("departure_date", DAY, "arrival_city", "departure_city", "return_date").side == "start"


@pytest.mark.parametrize(
    ("name", "schema", "siblings", "text", "value"),
    [
        ("owner", TEXT, ["repo"], "acme/shop", "acme"),
        ("repo", TEXT, ["owner"], "acme/shop", "shop"),
        ("repo", TEXT, [], "acme/shop", "acme/shop"),
        ("pipeline", TEXT, [], "orders_daily", "orders_daily"),
        ("version", {"type": "integer"}, [], "v7", 7),
        ("since_minutes", {"type": "integer"}, [], "the last hour", 60),
        ("database", TEXT, ["collection"], "shop.orders", "shop"),
        ("width", INTEGER, ["height"], "640x480", 640),
        ("duration_hours", NUMBER, [], "90 minutes", 1.5),
        ("retention_days", INTEGER, [], "two weeks", 14),
        ("months", INTEGER, [], "two years", 24),
        ("months", INTEGER, [], "2 years and 3 months", 27),
        ("warranty_years", NUMBER, [], "18 months", 1.5),
        ("warranty_years", NUMBER, [], "1 year and 6 months", 1.5),
        ("term", {"type": "string", "format": "duration"}, [], "2 years", "PT63072000S"),
        ("page_id", TEXT, [], "12", "12"),
        ("pull_number", INTEGER, [], "#42", 42),
        ("start", {"type": "string", "format": "date-time"}, [], "since Monday", "2026-11-23T00:00:00Z"),
        ("start_date", DAY, [], "last week", "2026-11-16"),
        ("due_date", DAY, [], "by Friday at 9", "2026-11-27"),
        ("paid_on", DAY, [], "on Friday", "2026-11-20"),
        ("until", {"type": "string", "format": "time"}, [], "2 pm", "14:00:00Z"),
        ("emails", {"type": "array", "items": TEXT}, [], "a@b.example", ["a@b.example"]),
        ("assignee", TEXT, [], "@ann", "ann"),
        ("subject", TEXT, ["body"], "'Rack keys'", "Rack keys"),
        ("country", {"enum": ["AT", "DE"]}, [], "Austria", "AT"),
        ("filter", {"type": "object"}, [], 'with {"a": 1}', {"a": 1}),
    ],
)
def test_best_value(name: str, schema: dict[str, Any], siblings: list[str], text: str, value: object) -> None:
    assert given(param(name, schema, *siblings), text)[0][1] == value


@pytest.mark.parametrize(
    ("name", "schema", "text"),
    [
        ("limit", {"type": "integer", "minimum": 1, "maximum": 100}, "500 results"),
        ("version", INTEGER, f"v{'1' * 5000}"),
        ("ticket", INTEGER, f"#{'1' * 5000}"),
        ("minutes", INTEGER, f"{'9' * 400}h 30m"),
        ("key", {"type": "string", "pattern": "^[A-Z]+-\\d+$"}, "c_17"),
        ("state", {"enum": ["open", "closed"]}, "c_17"),
        ("password", TEXT, "'abc'"),
        ("after", {"type": "string", "description": "Cursor of the page before"}, "acme/shop"),
        ("count", INTEGER, "2026-01-01"),
        ("months", INTEGER, "365 days"),
        ("filter", {"type": "object"}, "{'a': 1} since last week"),
    ],
)
def test_unfit_values(name: str, schema: dict[str, Any], text: str) -> None:
    assert given(param(name, schema), text) == []


def test_other_end_of_a_range_does_not_fit() -> None:
    price = param("max_price", INTEGER)
    assert given(price, "between 10 and 20") == [(1.0, 20)]
    assert given(param("limit", INTEGER), "between 10 and 20")[0][0] < 0.5


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#/properties/a"}}},
        {"properties": {"a": {"$ref": "#/nowhere"}, "b": True, "c": {"type": ["null", "string"]}}},
        {"properties": {"a": {"pattern": "(["}, "b": {"anyOf": 3}, "": {}}},
        {"properties": {"a": {"items": {"enum": [None]}, "type": "array"}, "b": {"type": "array", "items": [TEXT]}}},
        {"properties": {"a": {"allOf": [{"type": "string"}, {"minLength": 1}]}}},
    ],
)
def test_odd_schemas_are_read(schema: dict[str, Any]) -> None:
    for one in params(schema).values():
        for value in read("a_1 'b' 3 acme/shop tomorrow at 9", NOW).found:
            if fits(one, value):
                coerced(one, value)
