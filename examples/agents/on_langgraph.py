"""A LangGraph agent that delegates, sleeps, and is woken by what comes to its inbox."""

import json
import sys
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from gatehouse_client import Client


def agent(model: BaseChatModel, client: Client) -> Any:
    """The model, and its tools until it asks for none."""

    @tool
    def delegate(task_type: str, params: dict[str, Any]) -> str:
        """Hand work to whoever does this type of task. Returns the task's id at once; then sleep."""
        return client.queue(task_type=task_type, params=params).task_id

    @tool
    def sleep(task_id: str) -> str:
        """Sleep until a task has ended, then read what came to your inbox meanwhile."""
        told = [f"{task_id} is {client.status(task_id, wait=3600).status}."]
        for entry in client.read().entries:
            client.ack_entries([entry.ref])
            told.append(f"{entry.title}: {entry.summary}")
        return "\n".join(told)

    @tool
    def result(task_id: str) -> str:
        """The result of a task that has ended."""
        return json.dumps(client.result(task_id).content)

    tools = [delegate, sleep, result]
    mind = model.bind_tools(tools)
    graph = StateGraph(MessagesState)
    graph.add_node("think", lambda state: {"messages": [mind.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    return graph.compile()


class Scripted(BaseChatModel):
    """Stands in for a model: has the lines of a folder counted, sleeps, and says the result."""

    _llm_type = "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        said = [message.content for message in messages if isinstance(message, ToolMessage)]
        task_id = said[0] if said else ""
        calls: list[tuple[str, dict[str, Any]]] = [
            ("delegate", {"task_type": "count_lines", "params": {"folder": messages[0].content}}),
            ("sleep", {"task_id": task_id}),
            ("result", {"task_id": task_id}),
        ]
        answer = AIMessage(f"Counted: {said[-1]}") if len(said) == len(calls) else None
        if answer is None:
            name, args = calls[len(said)]
            answer = AIMessage("", tool_calls=[{"name": name, "args": args, "id": name}])
        return ChatResult(generations=[ChatGeneration(message=answer)])


if __name__ == "__main__":
    name, request = sys.argv[1:]
    if name == "scripted":
        model: BaseChatModel = Scripted()
    else:
        from langchain.chat_models import init_chat_model

        model = init_chat_model(name)
    with Client.from_environment() as hub:
        print(agent(model, hub).invoke({"messages": [("user", request)]})["messages"][-1].content)
