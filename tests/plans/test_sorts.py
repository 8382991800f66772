"""What is for one sort of thing is not taken for another that is named in its place: Python code and Java code, PDF and HTML documents."""

import pytest

from apps.plans import sorts
from apps.plans.catalogue import Catalogue
from apps.plans.choosing import Memo
from apps.plans.documents import Plan, PlanStatus
from apps.plans.planner import plan
from tests.plans import manifests
from tests.plans.shelf import INTEGER, STRING, make_plan, make_request, offer, ranker, shape, tool

_TOOLS = (
    tool("lint_rust_code", "Lint Rust code for style.", shape("path", path=STRING), shape(findings={"type": "array"})),
    tool("convert_csv", "Convert a CSV file to JSON.", shape("path", path=STRING), shape(json_pointer=STRING)),
    tool("check_spelling", "Check the spelling of an English text.", shape("text", text=STRING), shape(errors=INTEGER)),
    tool(
        "count_lines",
        "Count the lines of source code in a file.",
        shape("path", path=STRING, language={"type": "string", "enum": ["python", "java"]}),
        shape(lines=INTEGER),
    ),
    tool("file_ticket", "Submit a Jira ticket.", shape("name", name=STRING), shape(ticket_id=STRING)),
)
_EFFECTS = {"file_ticket": ["write"]}
WORKSHOP = Catalogue(
    3, _TOOLS, [offer(one.name.replace("_", "-"), one, effects=_EFFECTS.get(one.name, ["read"])) for one in _TOOLS]
)
_WORD = tool("index_word", "Index Word documents for search.", shape("files", files={"type": "array"}), shape())


def planned(intent: str) -> Plan:
    """By the bundled workers, if they come near it, else by the workshop."""
    return make_plan(intent, manifests.bundled() if _is_for_the_bundled(intent) else WORKSHOP)


def _is_for_the_bundled(intent: str) -> bool:
    return any(verb in intent for verb in ("Analyze", "Index", "Suggest", "Assess", "Extract", "List", "sentiment"))


@pytest.mark.parametrize(
    ("intent", "told"),
    [
        ("Analyze the Java code in /srv/shop", "Java"),
        ("Analyze the rust repository in /home/x/y and suggest improvements", "rust"),
        ("Suggest optimizations for the Go code in /srv/api", "Go"),
        ("Suggest optimizations for the C++ code in /srv/cpp", "C++"),
        ("Analyze the C# code in /srv/web", "C#"),
        ("Assess the code in /srv/pay, which is written in PHP", "PHP"),
        ("Analyze the Python and Scala code in /srv/mix", "Scala"),
        ("Index the Markdown files in /srv/notes", "Markdown"),
        ("Index the HTML documents in /srv/web and extract the key concepts", "HTML"),
        ("Lint the Python code in /srv/x", "Python"),
        ("Convert the XML file /a/b.xml to JSON", "XML"),
        ("Convert the CSV file /a/b.csv to XML", "XML"),
        ("Convert the JSON file /a/b.json to CSV", "CSV"),
        ("Convert the file /a/b.xml to JSON", ".xml"),
        ("Lint the code in /srv/x/main.py", ".py"),
        ("Index /srv/docs/letter.html", ".html"),
        ("Check the spelling of the French text 'bonjour tout le monde'", "French"),
    ],
)
def test_another_sort_than_a_tool_is_for_is_named_in_a_refusal(intent: str, told: str) -> None:
    made = planned(intent)

    assert made.status == PlanStatus.NEEDS_ESCALATION
    assert any(f"the request speaks of {told}" in one["detail"] for one in made.missing or ())
    assert made.partial_plan is not None
    assert made.partial_plan["steps"]


@pytest.mark.parametrize(
    "intent",
    [
        "Index the Word documents in /srv/docs",
        "Analyze the COBOL code in /srv/bank",
        "Assess the Delphi codebase at /srv/till and suggest optimizations",
        "Extract the key concepts of the LaTeX documents in /srv/theses",
    ],
)
def test_a_name_that_may_be_of_a_sort_makes_a_plan_unsure_and_is_told(intent: str) -> None:
    made = planned(intent)

    assert made.status == PlanStatus.NEEDS_ESCALATION or made.confidence <= 0.5
    assert any("the request speaks of" in said for said in made.assumptions)


def test_any_other_word_in_the_place_of_a_sort_is_only_told() -> None:
    made = planned("Analyze the backend code in /srv/x")

    assert made.status == PlanStatus.READY
    assert made.confidence > 0.6
    assert "analyze_repository is for Python, and the request speaks of backend" in " ".join(made.assumptions)


def test_a_sort_that_another_tool_is_for_is_one() -> None:
    bundled = manifests.bundled()
    barred = offer("word-indexer", _WORD, barred="it is away")
    both = Catalogue(9, [*bundled.tools, _WORD], [*bundled.offers, barred])
    made = make_plan("Index the Word documents in /srv/docs", both)

    assert made.status == PlanStatus.NEEDS_ESCALATION
    assert "index_word" in str(made.missing)


def test_what_changes_the_world_is_not_done_to_what_may_be_of_another_sort() -> None:
    assert make_plan("Submit the Jira ticket 'Login fails'", WORKSHOP).status == PlanStatus.READY
    assert make_plan("Submit the GitHub ticket 'Login fails'", WORKSHOP).status == PlanStatus.NEEDS_ESCALATION


@pytest.mark.parametrize(
    ("intent", "tools"),
    [
        ("Analyze the legacy Python code in /srv/x", ["analyze_repository"]),
        ("Analyze the code in /srv/java-shop", ["analyze_repository"]),
        ("Analyze the Gatehouse code in /srv/gatehouse", ["analyze_repository"]),
        ("Index the German PDF documents in /srv/docs", ["scan_directory", "index_pdfs"]),
        ("Index the PDFs about Rust in /srv/docs", ["scan_directory", "index_pdfs"]),
        ("List the csv files in /srv/in", ["scan_directory"]),
        ("What is the sentiment of the German text 'gut gemacht'?", ["analyze_sentiment"]),
        ("Count the lines of Java code in /srv/x/Main.java", ["count_lines"]),
        ("Convert the CSV file /a/b.csv to JSON", ["convert_csv"]),
        ("Convert the file /a/b.csv to JSON", ["convert_csv"]),
        ("Lint the code in /srv/x/main.rs", ["lint_rust_code"]),
        ("Index /srv/docs/letter.pdf", ["index_pdfs"]),
        ("Check the spelling of the short text 'hello wold'", ["check_spelling"]),
    ],
)
def test_what_is_of_the_sort_or_tells_something_else_is_served_as_before(intent: str, tools: list[str]) -> None:
    made = planned(intent)

    assert made.status == PlanStatus.READY, made.missing
    assert [step.tool_name for step in made.steps if step.tool_name] == tools
    assert not any("the request speaks of" in said for said in made.assumptions if "short" not in said)


def test_what_a_step_needs_comes_from_the_tool_that_speaks_of_such_files() -> None:
    made = make_plan("Get the concepts out of /p/a.pdf and /p/b.pdf", manifests.bundled())

    assert made.status == PlanStatus.READY
    assert [step.tool_name for step in made.steps if step.tool_name] == ["index_pdfs", "extract_concepts"]
    assert made.steps[0].params == {"files": ["/p/a.pdf", "/p/b.pdf"]}


def test_what_was_chosen_for_a_file_of_one_sort_is_not_taken_for_another() -> None:
    memo = Memo()
    told = [
        plan(make_request(f"Lint the code in {path}"), ranker(WORKSHOP), memo).status
        for path in ("/srv/x/main.rs", "/srv/x/main.py", "/srv/y/main.rs")
    ]

    assert told == [PlanStatus.READY, PlanStatus.NEEDS_ESCALATION, PlanStatus.READY]


@pytest.mark.parametrize(
    ("description", "own"),
    [
        ("Format Python, JavaScript or Java code.", {"python", "javascript", "java"}),
        ("A formatter that is written in Python.", set()),
        ("List files such as PDF documents.", set()),
        ("Index documents. Reads PDF files as well.", set()),
        ("Index PDF and EPUB documents.", {"pdf", "epub"}),
    ],
)
def test_a_tool_is_for_the_sorts_that_say_what_it_does(description: str, own: set[str]) -> None:
    found = sorts.of_tool(tool("treat", description, shape(), shape()), ())

    assert {sort.word for sort in found.own} == own
