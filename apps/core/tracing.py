"""One trace from a request through Celery to MCP workers, as W3C Trace Context has it. Its id is the one in the logs.

With the extra `tracing` and OTEL_EXPORTER_OTLP_ENDPOINT set, spans go to an OpenTelemetry collector. Without, ids are
handed on all the same.
"""

import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, Final

import structlog
from celery import signals
from django.conf import settings
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

logger = logging.getLogger(__name__)

_W3C: Final = TraceContextTextMapPropagator()
_HEADERS: Final = ("traceparent", "tracestate")


@contextmanager
def span(name: str, carrier: Mapping[str, Any], kind: SpanKind) -> Iterator[Span]:
    """Go on with the trace that the carrier names, else with the current one, else begin one.

    Inside, the trace's id is the `request_id` of log lines.
    """
    named = {name: text for name in _HEADERS if isinstance(text := carrier.get(name), str) and text}
    parent = _W3C.extract(named) if named else None
    exported = _exports() and trace.get_tracer("gatehouse").start_as_current_span(name, context=parent, kind=kind)
    with exported or _entered(parent) as current:
        structlog.contextvars.bind_contextvars(request_id=trace_id())
        yield current


@contextmanager
def _entered(parent: Context | None) -> Iterator[Span]:
    """As ``use_span``, for a span that records nothing."""
    current = trace.get_current_span(parent)
    if not current.get_span_context().is_valid:
        ids = SpanContext(trace_id=secrets.randbits(128), span_id=secrets.randbits(64), is_remote=False)
        current = NonRecordingSpan(ids)
    token = context.attach(trace.set_span_in_context(current))
    try:
        yield current
    finally:
        context.detach(token)


def trace_id() -> str:
    """The id of the current trace in 32 hexadecimal digits; zeros outside of any."""
    return f"{trace.get_current_span().get_span_context().trace_id:032x}"


def carrier() -> dict[str, str]:
    """What hands the current trace on; empty outside of any."""
    named: dict[str, str] = {}
    _W3C.inject(named)
    return named


@contextmanager
def handed_on(named: Mapping[str, str]) -> Iterator[None]:
    """Do for a trace what another thread asks for. Needs what :func:`carrier` gave there."""
    with trace.use_span(trace.get_current_span(_W3C.extract(named))):
        yield


@cache
def _exports() -> bool:
    """Whether spans are exported; arranged at the first span of a process, so after its fork."""
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return False
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  # an extra
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  # as above
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415  # as above
    except ImportError:
        logger.warning("OTEL_EXPORTER_OTLP_ENDPOINT needs opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http")
        return False
    os.environ.setdefault("OTEL_SERVICE_NAME", f"gatehouse-{settings.PROCESS}")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return True


# Messages for Celery. Those of beat belong to no trace and begin none.
@signals.before_task_publish.connect
def _published(headers: dict[str, Any], **_: Any) -> None:
    headers.update(carrier())


@signals.task_prerun.connect
def _begun(task: Any, **_: Any) -> None:
    named = {name: text for name in _HEADERS if (text := getattr(task.request, name, None))}
    if named:
        task.request.traced = ExitStack()
        task.request.traced.enter_context(span(task.name, named, SpanKind.CONSUMER))


@signals.task_postrun.connect
def _ended(task: Any, **_: Any) -> None:
    if (traced := getattr(task.request, "traced", None)) is not None:
        traced.close()
        structlog.contextvars.unbind_contextvars("request_id")
