"""An agent of the OpenAI Agents SDK that delegates, sleeps, and is woken by what comes to its inbox."""

import json
import sys
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from gatehouse_client import Client


def agent(model: Model | str, client: Client) -> Agent:
    """The model and its tools."""

    @function_tool
    def delegate(task_type: str, params: str) -> str:
        """Hand work to whoever does this type of task. Returns the task's id at once; then sleep.

        Args:
            task_type: The type of the task.
            params: A JSON object.
        """
        return client.queue(task_type=task_type, params=json.loads(params)).task_id

    @function_tool
    def sleep(task_id: str) -> str:
        """Sleep until a task has ended, then read what came to your inbox meanwhile."""
        told = [f"{task_id} is {client.status(task_id, wait=3600).status}."]
        for entry in client.read().entries:
            client.ack_entries([entry.ref])
            told.append(f"{entry.title}: {entry.summary}")
        return "\n".join(told)

    @function_tool
    def result(task_id: str) -> str:
        """The result of a task that has ended."""
        return json.dumps(client.result(task_id).content)

    return Agent(name="Gatehouse", model=model, tools=[delegate, sleep, result])


class Scripted(Model):
    """Stands in for a model: has the lines of a folder counted, sleeps, and says the result."""

    async def get_response(self, *_: Any, **asked: Any) -> ModelResponse:
        heard = asked["input"]
        said = [item["output"] for item in heard if item.get("type") == "function_call_output"]
        task_id = said[0] if said else ""
        calls: list[tuple[str, dict[str, Any]]] = [
            ("delegate", {"task_type": "count_lines", "params": json.dumps({"folder": heard[0]["content"]})}),
            ("sleep", {"task_id": task_id}),
            ("result", {"task_id": task_id}),
        ]
        answer: Any
        if len(said) == len(calls):
            text = ResponseOutputText(type="output_text", text=f"Counted: {said[-1]}", annotations=[])
            answer = ResponseOutputMessage(
                id="answer", type="message", role="assistant", status="completed", content=[text]
            )
        else:
            name, args = calls[len(said)]
            answer = ResponseFunctionToolCall(type="function_call", call_id=name, name=name, arguments=json.dumps(args))
        return ModelResponse(output=[answer], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


if __name__ == "__main__":
    name, request = sys.argv[1:]
    if name == "scripted":
        set_tracing_disabled(True)  # it would be sent to OpenAI
    with Client.from_environment() as hub:
        print(Runner.run_sync(agent(Scripted() if name == "scripted" else name, hub), request).final_output)
