"""What a source knows about its own receipts: which belong together, what a thread of them says, what to do next.

An app registers a hook for a source system in a module named `hooks`, which is found by itself::

    register(Hook(source_system="crm", reads=("deal.id",), group_of=group_of, summarize_thread=summarize_thread))

Hooks are pure and quick: `summarize_thread` runs while the inbox is held. One that fails is logged, and the receipt is
treated as if its source had none.
"""

from apps.digests.hooks import github
from apps.digests.hooks.registry import (
    Context,
    Fact,
    Hook,
    SummarizeThread,
    fact_of,
    group_of,
    hook_of,
    next_action,
    register,
    summarize_thread,
    unregister,
    value_at,
)

__all__ = [
    "Context",
    "Fact",
    "Hook",
    "SummarizeThread",
    "fact_of",
    "github",
    "group_of",
    "hook_of",
    "next_action",
    "register",
    "summarize_thread",
    "unregister",
    "value_at",
]
