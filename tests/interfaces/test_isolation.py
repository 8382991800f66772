"""Two tenants never meet: whatever one of them asks, by any name that the other uses, no word of the other comes back.
Another principal of the same tenant is shown what the tenant shares alone.

The registry is the list of what is asked. Both tenants use the same names; every text of the first holds a canary. What
the stranger asks, the owner asks before: each operation answers it, and each that reads shows it the canary. Where one
does not, :mod:`tests.interfaces.planting` lacks what it is to be asked for.
"""

import base64
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import pytest

from apps.core.errors import DomainError
from apps.core.operations import Operation, Route
from apps.core.schemas import json_schema, parse
from apps.mcp.methods import ADDRESSES, Address
from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import acting_as_system
from tests.factories import credential_of, make_token
from tests.interfaces.asking import ROUTED, TOOLS, rest, tool, undone
from tests.interfaces.planting import Planted, plant_everything
from tests.mcp.raw import modern
from tests.memory.subjects import CANARY
from tests.workers.servers import serving

pytestmark = [pytest.mark.ci, pytest.mark.usefixtures("own_artifacts")]

# What takes its time by being asked.
SLOW: Final = {"wait_seconds", "wait", "patience"}
# What reads and yet shows no text of its tenant, and why.
WORDLESS: Final = {
    "find_tools": "answers what the product has",
    "replay_inbox_policy": "answers numbers",
    "validate_plan": "answers what is wrong with a plan that came with the question",
    "whoami": "answers names, which both tenants use",
}
# What shows a text of a principal to another one of its tenant, and why.
_REGISTRY, _QUEUES, _KNOWLEDGE = (
    "MCP workers are the tenant's",
    "queues and task types are too",
    "so is what has no subject",
)
SHARED: Final = {
    **dict.fromkeys(("create_delegation_plan", "request_plan", "search_capabilities"), _REGISTRY),
    **dict.fromkeys(("get_worker_manifest", "list_workers"), _REGISTRY),
    **dict.fromkeys(("list_queues", "list_task_types", "pause_task_type", "resume_task_type"), _QUEUES),
    **dict.fromkeys(("get_memory_policy", "list_memory_relationships", "memory_read", "memory_recall"), _KNOWLEDGE),
    "lease_tasks": "whoever works for a queue is given its tasks",
    "read_artifact": "whoever knows the digest may read it",
}
# What it does where the owner's things are named: things of its own are made, or what the tenant shares is changed.
OWN: Final = """
    add_subject call_worker_tool carry_out_request create_delegation_plan inherit leave_handoff memory_promote
    memory_store post_inbox_receipt post_receipt post_receipts post_universal_receipt queue_task record_session
    request_plan revoke_own_tokens rotate_token schedule_task set_inbox_policy set_target
"""
TENANTS: Final = """
    lease_tasks memory_add_concept_relationship memory_store_concept memory_update_pattern pause_queue pause_task_type
    register_task_type resume_queue resume_task_type set_queue_limits
"""
# Of one of many: what an answer without a fault of its own says where nothing was done.
REFUSED: Final = {"refused", "lost"}


def _in_base64(text: str) -> Iterator[str]:
    """What stands in any base64 of a text with this in it, wherever it begins."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + text.encode()).decode().rstrip("=")
        yield encoded[(0, 2, 3)[before] : len(encoded) - ((before + len(text)) % 3 > 0)]


# However it is written.
THE_CANARY: Final = re.compile(f"(?i:zanzibar.?quokka)|{'|'.join(map(re.escape, _in_base64(CANARY)))}")


@dataclass(frozen=True)
class Two:
    """Whose tokens are asked with, and what of the owner's is asked for."""

    owner: str
    stranger: str
    colleague: str
    planted: Planted


@dataclass(frozen=True)
class Said:
    """An answer as it came, and whether it is no refusal."""

    text: str
    fine: bool


@pytest.fixture
def two(db: None) -> Iterator[Two]:
    planted = plant_everything("acme", CANARY)
    plant_everything("globex", "harmless")
    with serving() as server:
        planted.ask("add_mcp_server", url=server.endpoint)
        owner, stranger = make_token_of("acme", "Kee"), make_token_of("globex", "Kee")
        colleague = make_token_of("acme", "Nia", set(Scope) - {Scope.ADMIN})
        yield Two(owner=owner, stranger=stranger, colleague=colleague, planted=planted)


def make_token_of(slug: str, name: str, scopes: Collection[Scope] = frozenset(Scope)) -> str:
    with acting_as_system("test"):
        tenant = Tenant.objects.get(slug=slug)
    return make_token(tenant, name, scopes=scopes, source_systems=["github", "asyncgate"])


def questions(declared: Operation, planted: Planted) -> list[dict[str, Any]]:
    """Inputs that name the owner's things: all that the operation takes, the least, and each further name by itself."""
    schema = json_schema(declared.input, "validation")
    members: Mapping[str, Any] = {name: of for name, of in schema["properties"].items() if name not in SLOW}
    known = planted.of(declared.name)
    least = {name: known.get(name, _value(members[name])) for name in schema.get("required", ())}
    further = {name: known[name] for name in members if name in known and name not in least}
    whole = {**least, **further}
    singly = [{**least, name: value} for name, value in further.items()]
    return [whole, *(one for one in (least, *singly) if one != whole)]


def _value(schema: Mapping[str, Any]) -> Any:
    """Something that a schema may allow."""
    for choice in (*schema.get("enum", ()), *schema.get("anyOf", ())):
        return _value(choice) if isinstance(choice, dict) else choice
    match schema.get("type"):
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
        case "array":
            return [_value(schema.get("items", {}))] if schema.get("minItems") else []
        case "object":
            return {name: _value(schema["properties"][name]) for name in schema.get("required", ())}
        case _:
            return "x"


def ask_rest(declared: Operation, route: Route, given: Mapping[str, Any], token: str) -> Said:
    answer = rest(route, given, token)
    assert answer.status_code < 500
    fine = answer.status_code < 400
    if declared.streams:
        return Said(f"{answer.headers}{streamed(declared, given, token)}", fine)
    fine = fine and not refused(json.loads(answer.content or "{}"))
    return Said(f"{answer.headers}{answer.content.decode()}", fine)


def streamed(declared: Operation, given: Mapping[str, Any], token: str) -> str:
    """What a stream begins with: it has no end to wait for."""
    caller = credential_of(token)
    assert caller is not None
    with caller.acting():
        try:
            return str(declared.run(caller, parse(declared.input, given)))
        except DomainError as refusal:
            return str(vars(refusal))


def ask_tool(declared: Operation, given: Mapping[str, Any], token: str) -> Said:
    answer = tool(declared, given, token)
    assert answer.status_code < 500
    result = answer.json().get("result", {"isError": True})
    fine = not result.get("isError") and not refused(result["structuredContent"])
    return Said(answer.content.decode(), fine)


def refused(document: Mapping[str, Any]) -> bool:
    """Whether any of many was refused, in an answer that is none itself."""
    return any(isinstance(one, dict) and one.get("status") in REFUSED for one in document.get("results", ()))


def leaks(said: Said, given: object) -> bool:
    """Whether an answer holds the canary. No question does."""
    assert not THE_CANARY.search(json.dumps(given))
    return THE_CANARY.search(said.text) is not None


def reads(declared: Operation) -> bool:
    return declared.read_only or any(route.method == "GET" for route in declared.routes)


def enough(declared: Operation, said: Said) -> bool:
    """Whether an answer to the owner is one in which the stranger's could show a leak."""
    return said.fine and (declared.name in WORDLESS or not reads(declared) or leaks(said, {}))


def meet(
    declared: Operation, ask: Callable[[Mapping[str, Any], str], Said], two: Two, other: str
) -> tuple[bool, list[Any], bool]:
    """Whether the owner is answered what it asks, what the other has to ask to be told a word of the owner's, and whether
    the other has something done.
    """

    def said(given: Mapping[str, Any], token: str) -> Said:
        with undone():
            return ask(given, token)

    asked = questions(declared, two.planted)
    reached = any(enough(declared, said(given, two.owner)) for given in asked)
    told = [(given, said(given, other)) for given in asked]
    is_done = not reads(declared) and any(one.fine for _, one in told)
    return reached, [given for given, one in told if leaks(one, given)], is_done


ROUTES: Final = [(declared, f"{one.method} {one.path}", partial(ask_rest, declared, one)) for declared, one in ROUTED]
CALLS: Final = [(declared, declared.name, partial(ask_tool, declared)) for declared in TOOLS]


@pytest.mark.parametrize("doors", [ROUTES, CALLS], ids=["route", "tool"])
def test_no_answer_shows_data_of_another_tenant(two: Two, doors: list[tuple[Operation, str, Any]]) -> None:
    out_of_reach, leaking = [], []
    # What destroys comes last: files that are gone are so for those who ask afterwards, too.
    for declared, name, ask in sorted(doors, key=lambda door: door[0].destructive):
        reached, told, _ = meet(declared, ask, two, two.stranger)
        out_of_reach += [] if reached else [name]
        leaking += [(name, given) for given in told]
    assert (out_of_reach, leaking) == ([], [])


@pytest.mark.parametrize("doors", [ROUTES, CALLS], ids=["route", "tool"])
def test_colleague_reaches_what_a_tenant_shares_only(two: Two, doors: list[tuple[Operation, str, Any]]) -> None:
    """Another principal of the same tenant, with every scope but `admin`."""
    shown, done = set(), set()
    for declared, _, ask in sorted(doors, key=lambda door: door[0].destructive):
        _, told, is_done = meet(declared, ask, two, two.colleague)
        shown |= {declared.name} if told else set()
        done |= {declared.name} if is_done else set()
    names = {declared.name for declared, _, _ in doors}
    assert shown == SHARED.keys() & names
    assert done == {*OWN.split(), *TENANTS.split()} & names


def addressed(address: Address, planted: Planted) -> list[str]:
    """The URIs of what the owner has at an address, as one may write them."""
    given = [str(planted.of(address.operation)[name]) for name in address.parameters]
    blank = re.sub(r"{\w+}", "{}", address.uri)
    return [blank.format(*given), blank.format(*(quote(value, safe="") for value in given))]


def test_no_resource_shows_data_of_another_tenant(two: Two) -> None:
    for uri in (uri for address in ADDRESSES for uri in addressed(address, two.planted)):
        assert leaks(read(uri, two.owner), uri), uri
        assert not leaks(read(uri, two.stranger), uri), uri


def read(uri: str, token: str) -> Said:
    with undone():
        answer = modern("resources/read", {"uri": uri}, token)
    return Said(answer.content.decode(), fine=answer.status_code == 200)
