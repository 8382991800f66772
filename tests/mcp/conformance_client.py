"""The product's MCP client as a program that the official suite runs: it looks at a server as discovery does, and calls
its tools as executions do.
"""

import json
import os
import sys
from datetime import timedelta
from decimal import Decimal
from typing import Any

import django

django.setup()

from apps.executions.calls import Target, call  # noqa: E402
from apps.executions.errors import WorkerAsks  # noqa: E402
from apps.workers.manifests import look  # noqa: E402

SECONDS = timedelta(seconds=20)
SAMPLES = {"number": 2, "integer": 2, "boolean": True, "string": "x"}


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    required = fields.get("required", ())
    return {
        name: SAMPLES[one["type"]]
        for name, one in fields["properties"].items()
        if name in required and "default" not in one
    }


url = sys.argv[-1]
context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
told = {one["name"]: one["arguments"] for one in context.get("toolCalls", ())}
takes_defaults = "defaults" in os.environ["MCP_CONFORMANCE_SCENARIO"]
for tool in look(url, deadline=SECONDS, with_manifest=False).tools:
    schema = tool.input_schema
    usual = {name: SAMPLES[one["type"]] for name, one in schema.get("properties", {}).items() if "type" in one}
    target = Target(
        worker_id="conformance",
        tool_name=tool.name,
        endpoint=url,
        input_schema=schema,
        deadline=SECONDS,
        max_params_bytes=100_000,
        repeatable=True,
        runtime="fast",
        cost=Decimal(0),
    )
    params = told.get(tool.name, usual)
    try:
        call(target=target, params=params, deadline=SECONDS, answers={"*": {}} if takes_defaults else None)
    except WorkerAsks as asked:
        # As a person who takes what the form proposes, and says yes.
        said = {one["key"]: _filled(one["fields"]) for one in asked.extra["questions"]}
        call(target=target, params=params, deadline=SECONDS, answers=said)
