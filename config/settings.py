"""Settings of every process, read from the environment.

Servers are found in this order: ``DATABASE_URL`` / ``REDIS_URL``; ``GATEHOUSE_DATA`` (the folder of a
running stack); ``var/`` beside this tree. Importing this module connects to nothing.
"""

import ipaddress
import json
import logging
import os
import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import environ
import structlog
from csp.constants import NONE, SELF, UNSAFE_INLINE
from django.core.exceptions import ImproperlyConfigured
from django.templatetags.static import static
from psycopg_pool import ConnectionPool

from config.logs import drop_routine, tell_exception

# Before numpy is loaded. Its products here take a millisecond: threads that share one wait for each other far longer where
# anything else runs, and give other last digits on other machines.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

BASE_DIR = Path(__file__).resolve().parent.parent


class _Env(environ.Env):  # type: ignore[misc]  # it has no types
    def get_value(self, var: str, cast: Any = None, **more: Any) -> Any:
        try:
            return super().get_value(var, cast=cast, **more)
        except ValueError:
            if cast not in (int, float):
                raise
            raise SystemExit(f"{var} must be a number, and is {self.ENVIRON[var]!r}.") from None


env = _Env()

# development or production, which refuses to start without its keys and logins.
_ENVIRONMENT = env.str("GATEHOUSE_ENV", default="") or "development"
if _ENVIRONMENT not in {"development", "production"}:
    raise ImproperlyConfigured(f"GATEHOUSE_ENV is {_ENVIRONMENT!r}; it must be development or production.")
PRODUCTION = _ENVIRONMENT == "production"
# The kind of this process: web, worker, beat or command.
PROCESS = env.str("GATEHOUSE_PROCESS", default="command")
# The folder of the embedded servers, artifacts and secrets.
DATA_DIR = Path(env.str("GATEHOUSE_DATA", default=str(BASE_DIR / "var"))).expanduser().resolve()


def _running_stack() -> dict[str, str]:
    """What the supervisor wrote about the servers it runs in the data folder; empty when none runs there."""
    try:
        stack: dict[str, str] = json.loads((DATA_DIR / "stack.json").read_text())
    except FileNotFoundError:
        return {}
    return stack


_stack = _running_stack()
# The logins of requests, of the system and of the owner (see docs/deploy.md), and the broker. With `DATABASE_URL` set, the
# logins of a running stack are not used.
_logins = env.ENVIRON if env.str("DATABASE_URL", default="") else {name.upper(): url for name, url in _stack.items()}
DATABASE_URL = _logins.get("DATABASE_URL", f"postgresql:///gatehouse?host={quote(str(DATA_DIR))}")
DATABASE_URL_SYSTEM = _logins.get("DATABASE_URL_SYSTEM", "")
DATABASE_URL_OWNER = _logins.get("DATABASE_URL_OWNER", "")
REDIS_URL = env.str("REDIS_URL", default="") or _stack.get("redis_url", "redis://127.0.0.1:6379/0")


_NEEDED = (
    *("DATABASE_URL", "DATABASE_URL_SYSTEM", "REDIS_URL", "GATEHOUSE_HOSTS"),
    *("GATEHOUSE_SECRET_KEY", "GATEHOUSE_LEASE_KEYS", "GATEHOUSE_SEALING_KEYS", "GATEHOUSE_METRICS_TOKEN"),
)
if PRODUCTION and (_missing := [name for name in _NEEDED if not env.str(name, default="")]):
    # uvicorn and Celery would print a traceback for any other exception.
    raise SystemExit(f"Production needs these environment variables: {', '.join(_missing)}. See .env.example.")


def _secret(name: str) -> str:
    """A secret from the environment. In development the running stack's file or a random one takes its place."""
    return env.str(name, default="") or _stack.get(name.lower(), "") or secrets.token_urlsafe(48)


def _keys(name: str) -> list[str]:
    """A secret that is a list of keys, by commas. An empty one would verify what anybody can sign."""
    if not (keys := [key for key in _secret(name).split(",") if key]):
        raise ImproperlyConfigured(f"{name} has no key.")
    return keys


def _limits(name: str) -> dict[str, int]:
    """Limits by name, as a JSON object in the environment."""
    try:
        given = env.json(name, default={})
    except ValueError:
        given = None
    sound = isinstance(given, dict) and all(type(limit) is int and limit > 0 for limit in given.values())
    if not sound:
        raise ImproperlyConfigured(f'{name} must be a JSON object of whole numbers above 0, like {{"ci": 2000}}.')
    return dict(given)


def _networks(name: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Networks, separated by commas in the environment."""
    try:
        return [ipaddress.ip_network(network) for network in env.list(name, default=[])]
    except ValueError as exc:
        raise ImproperlyConfigured(f"{name} must be networks like 10.8.0.0/16, by commas: {exc}.") from exc


# Comma-separated keys. The first signs console sessions; all verify them.
SECRET_KEY, *SECRET_KEY_FALLBACKS = _keys("GATEHOUSE_SECRET_KEY")
# The first key signs lease tokens, all of them verify.
LEASE_KEYS = _keys("GATEHOUSE_LEASE_KEYS")
# The first key seals what is stored encrypted (core.sealing), all of them open.
SEALING_KEYS = _keys("GATEHOUSE_SEALING_KEYS")
DEBUG = False
# Host names that requests may carry; origins of other hosts that forms may come from; the public address.
ALLOWED_HOSTS = env.list("GATEHOUSE_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("GATEHOUSE_ORIGINS", default=[])
PUBLIC_URL = env.str("GATEHOUSE_URL", default="") or _stack.get("url", "")
# Workers on this machine may be called; a production deployment says so expressly.
ALLOW_LOOPBACK = env.bool("GATEHOUSE_ALLOW_LOOPBACK", default=not PRODUCTION)
# Private networks that may be called besides, without TLS too: whoever may name an address reaches all that is there.
ALLOWED_NETWORKS = _networks("GATEHOUSE_ALLOWED_NETWORKS")
# A language model that proposes plans: the whole address of a chat completions endpoint or of Anthropic's Messages API, the
# model's name, when to ask it (when_needed: where the local planner is not sure), for how long, and its prices: USD for a
# million input tokens and for a million output tokens.
PLANNER_MODEL_URL = env.str("GATEHOUSE_PLANNER_MODEL_URL", default="")
PLANNER_MODEL = env.str("GATEHOUSE_PLANNER_MODEL", default="")
PLANNER_USE_MODEL = env.str("GATEHOUSE_PLANNER_USE_MODEL", default="when_needed")
PLANNER_MODEL_SECONDS = env.float("GATEHOUSE_PLANNER_MODEL_SECONDS", default=20.0)
PLANNER_MODEL_PRICES = [float(price) for price in env.list("GATEHOUSE_PLANNER_MODEL_PRICES", default=[])]
PLANNER_MODEL_TOKEN = env.str("GATEHOUSE_PLANNER_MODEL_TOKEN", default="")
if PLANNER_USE_MODEL not in ("when_needed", "always", "never") or len(PLANNER_MODEL_PRICES) not in (0, 2):
    raise ImproperlyConfigured(
        "GATEHOUSE_PLANNER_USE_MODEL is when_needed, always or never; GATEHOUSE_PLANNER_MODEL_PRICES is two numbers, by a comma."
    )

INSTALLED_APPS = [
    "apps.core",
    "apps.principals",
    "apps.delivery",
    "apps.receipts",
    "apps.digests",
    "apps.memory",
    "apps.tasks",
    "apps.workers",
    "apps.plans",
    "apps.executions",
    "apps.handoff",
    "apps.mcp",
    "apps.console",
    "unfold.apps.BasicAppConfig",
    "unfold.contrib.filters",
    "apps.console.apps.ConsoleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_celery_beat",
    "django_structlog",
    "csp",
    "axes",
    "oauth2_provider",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "config.request_log.RequestLog",
    "axes.middleware.AxesMiddleware",
]
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
APPEND_SLASH = False
AUTH_USER_MODEL = "principals.Operator"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
LANGUAGE_CODE = "en"
FORMAT_MODULE_PATH = "config.formats"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
WHITENOISE_USE_FINDERS = True

# What a call costs where a worker names a band and no figure, in USD.
COST_BANDS = {"free": 0.0, "low": 0.001, "medium": 0.01, "high": 0.1}

# Receipts per hour and source; each tenant's operators may set another for a source.
SOURCE_RATE_LIMITS = {
    "asyncgate": 1000,
    "email_monitor": 500,
    "default": 100,
    **_limits("SOURCE_RATE_LIMITS"),
}

# Retention: how long what is acked is kept (a tenant may have its own figure), how long a superseded snapshot is, and
# how long stays what outlives a receipt: the key that refuses its repetition, and its tombstone in a chain.
RECEIPTS_KEPT = timedelta(days=env.int("GATEHOUSE_KEEP_RECEIPTS_DAYS", default=90))
SUPERSEDED_ENTRIES_KEPT = timedelta(hours=env.int("GATEHOUSE_KEEP_SUPERSEDED_HOURS", default=24))
RECEIPT_TRACES_KEPT = timedelta(days=env.int("GATEHOUSE_KEEP_RECEIPT_TRACES_DAYS", default=400))

# How long what is known of a task is kept after its end, where its type does not say; and the idempotency key that
# refuses its repetition, which outlives it.
TASKS_KEPT = timedelta(days=env.int("GATEHOUSE_KEEP_TASKS_DAYS", default=90))
TASK_KEYS_KEPT = timedelta(days=env.int("GATEHOUSE_KEEP_TASK_KEYS_DAYS", default=400))

# How long is kept what became of a worker; the last of it always is.
WORKER_EVENTS_KEPT = timedelta(days=env.int("GATEHOUSE_KEEP_WORKER_EVENTS_DAYS", default=90))

# Repositories whose folders of handoffs a tick cleans up, separated as in PATH; and how long is kept what was inherited.
HANDOFF_REPOSITORIES = [
    Path(root) for root in env.str("GATEHOUSE_HANDOFF_REPOSITORIES", default="").split(os.pathsep) if root
]
HANDOFFS_KEPT = timedelta(days=env.int("GATEHOUSE_KEEP_HANDOFFS_DAYS", default=30))

# Artifacts: files by default, any Django storage by settings.
STORAGES: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": DATA_DIR / "files"}},
    "artifacts": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": DATA_DIR / "artifacts"},
    },
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}


def databases(process: str) -> dict[str, dict[str, Any]]:
    """The logins of a kind of process (web | worker | beat | command); an absent one is that of requests."""
    # The most database connections of a web process.
    most = env.int("GATEHOUSE_POOL", default=16)
    found = {"default": database(process, DATABASE_URL, most)}
    if DATABASE_URL_SYSTEM:
        # The console, `/metrics` and `/readyz`.
        found["system"] = database(process, DATABASE_URL_SYSTEM, max(2, most // 4))
    if DATABASE_URL_OWNER and process == "command":
        found["owner"] = database(process, DATABASE_URL_OWNER, most)
    return found


def database(process: str, url: str, most: int) -> dict[str, Any]:
    """How a kind of process is connected by one login; a web process by `most` connections."""
    try:
        config: dict[str, Any] = dict(env.db_url_config(url))
    except ValueError:
        config = {}
    if config.get("ENGINE") != "django.db.backends.postgresql":
        form = "postgresql://user:password@host:port/database, with the password percent-encoded"
        raise SystemExit(f"DATABASE_URL, and those of other logins, must have the form {form}.")
    options: dict[str, Any] = dict(config.get("OPTIONS", {}))
    # Only hot statements are prepared (see core.sql); a generic plan is what makes them cheap.
    options["options"] = " ".join(
        f"-c {setting}"
        for setting in (
            "plan_cache_mode=force_generic_plan",
            # A login may change its own defaults; what a connection begins with wins.
            "search_path=public",
            # Whoever waits for a lock holds a connection; an interface gives up and says busy.
            f"lock_timeout={'2s' if process == 'web' else '10s'}",
            "statement_timeout=30s",
            "idle_in_transaction_session_timeout=60s",
            # An index of vectors goes on looking until a tenant has its share, nearest first (see apps/memory/vectors.py).
            "hnsw.iterative_scan=strict_order",
            "hnsw.ef_search=200",
        )
    )
    options["application_name"] = f"gatehouse-{process}"
    options["connect_timeout"] = 10
    config["ENGINE"] = "config.pooled"
    # A connection that the server has ended is noticed before a request gets it, pooled or not.
    if process == "web":
        # The pool doubles its pause after each failed attempt. It gives up after a second and begins anew, so that requests
        # get connections as soon as the database is back.
        again = {"reconnect_timeout": 1.0, "reconnect_failed": ConnectionPool.check}
        options["pool"] = {"min_size": min(2, most - 1), "max_size": most, "timeout": 10, **again}
    else:
        config["CONN_MAX_AGE"] = 300 if process in {"worker", "beat"} else 0
        config["CONN_HEALTH_CHECKS"] = True
    config["OPTIONS"] = options
    return config


DATABASES = databases(PROCESS)
DATABASE_ROUTERS = ["apps.core.sql.Logins"]

# The inbox service that `manage.py default_target` makes the default target of what goes elsewhere.
MEMORYGATE_URL = env.str("MEMORYGATE_URL", default="")
MEMORYGATE_SERVICE_TOKEN = env.str("MEMORYGATE_SERVICE_TOKEN", default="")

# What `manage.py source_tokens` accepts as tokens of sources. MemoryGate's is the one that we show it.
SERVICE_TOKEN_SUFFIX = "_SERVICE_TOKEN"  # noqa: S105  # the end of a name
SERVICE_TOKENS = {
    name: text
    for name, text in env.ENVIRON.items()
    if name.endswith(SERVICE_TOKEN_SUFFIX) and name != "MEMORYGATE_SERVICE_TOKEN" and text
}

# The embedder that recall asks what texts mean: an endpoint of the OpenAI form (its whole address, `…/v1/embeddings`), the
# name of its model and how many numbers that gives. Without one, recall goes by words alone.
EMBEDDER_URL = env.str("GATEHOUSE_EMBEDDER_URL", default="")
EMBEDDER_MODEL = env.str("GATEHOUSE_EMBEDDER_MODEL", default="")
EMBEDDER_DIMENSIONS = env.int("GATEHOUSE_EMBEDDER_DIMENSIONS", default=0)
EMBEDDER_TOKEN = env.str("GATEHOUSE_EMBEDDER_TOKEN", default="")
# More than an index of pgvector takes.
_MOST_DIMENSIONS = 4_000
if EMBEDDER_URL and not (EMBEDDER_MODEL and 0 < EMBEDDER_DIMENSIONS <= _MOST_DIMENSIONS):
    raise ImproperlyConfigured(
        "GATEHOUSE_EMBEDDER_URL needs GATEHOUSE_EMBEDDER_MODEL and GATEHOUSE_EMBEDDER_DIMENSIONS, from 1 to 4000."
    )

# The token for /metrics. Without one anybody who reaches the port may scrape; production then does not start.
METRICS_TOKEN = env.str("GATEHOUSE_METRICS_TOKEN", default="")

LOGIN_URL = "admin:login"
# Whoever opens the log-in itself asked for no other page.
LOGIN_REDIRECT_URL = "admin:index"
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#7c3aed"/>'
    '<path d="M10 25V12a6 6 0 0 1 12 0v13M8 25h16M16 17v8" fill="none" stroke="#fff" stroke-width="2.5"'
    ' stroke-linecap="round"/></svg>'
)
UNFOLD = {
    "SITE_TITLE": "Gatehouse",
    "SITE_HEADER": "Gatehouse",
    "SITE_SUBHEADER": "Operator's console",
    "SITE_SYMBOL": "door_open",
    "SITE_URL": None,
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": f"data:image/svg+xml,{quote(_ICON)}"},
    ],
    "STYLES": [lambda request: static("console/console.css")],
    "SCRIPTS": [lambda request, name=name: static(f"console/{name}.js") for name in ("idiomorph.min", "console")],
    "SHOW_HISTORY": False,
    "SHOW_VIEW_ON_SITE": False,
    "ENVIRONMENT": "apps.console.navigation.environment",
    "SIDEBAR": {"show_search": False, "command_search": False, "navigation": "apps.console.navigation.sidebar"},
    "TABS": "apps.console.navigation.tabs",
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["apps.principals.authentication.TokenAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "apps.core.openapi.OperationSchema",
    "EXCEPTION_HANDLER": "apps.core.problems.handle",
    "UNAUTHENTICATED_USER": None,
    "UNICODE_JSON": True,
    "STRICT_JSON": True,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Gatehouse",
    "DESCRIPTION": "The hub where AI agents get work done and hear about it.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PUBLIC": True,
    "SERVE_AUTHENTICATION": [],
    "SERVE_PERMISSIONS": [],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": False,
    # Operations name their own enumerations.
    "POSTPROCESSING_HOOKS": [],
}
# The largest artifact.
ARTIFACT_MAX_BYTES = env.int("GATEHOUSE_ARTIFACT_MAX_BYTES", default=32 * 1024 * 1024)
# A body above this is refused with 413 before it is parsed; routes may set less.
DATA_UPLOAD_MAX_MEMORY_SIZE = 8 * 1024 * 1024

# Open streams and waiting requests: of all callers in one process, and of one token there.
WAITING_PER_PROCESS = env.int("GATEHOUSE_WAITING", default=4096)
WAITING_PER_TOKEN = env.int("GATEHOUSE_WAITING_PER_TOKEN", default=1024)

# Celery moves work and holds none of it. The reasons stand in docs/decisions.
_VISIBILITY_TIMEOUT = 900
_TRANSPORT_OPTIONS = {
    "visibility_timeout": _VISIBILITY_TIMEOUT,
    "socket_timeout": 30,
    "socket_connect_timeout": 5,
    "socket_keepalive": not REDIS_URL.startswith("unix"),
    "health_check_interval": 10,
    "unacked_restore_interval": 10,
    "unacked_restore_throttle": 1,
}
CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://", 1).replace("?db=", "?virtual_host=")
CELERY_BROKER_TRANSPORT_OPTIONS = _TRANSPORT_OPTIONS
CELERY_VISIBILITY_TIMEOUT = _VISIBILITY_TIMEOUT
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = False
CELERY_TASK_RETRY_ON_WORKER_LOST = True
CELERY_TASK_SOFT_TIME_LIMIT = 600
CELERY_TASK_TIME_LIMIT = 660
CELERY_TASK_DEFAULT_QUEUE = "sweep"
CELERY_TASK_ROUTES = {
    "tasks.execute": {"queue": "execute"},
    "executions.*": {"queue": "execute"},
    "delivery.*": {"queue": "deliver"},
}
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_DISABLE_PREFETCH = True
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 30
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_DB_REUSE_MAX = 1000
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = 1
CELERY_TIMEZONE = "UTC"

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SECURE = PRODUCTION
CSRF_COOKIE_SECURE = PRODUCTION
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# Nothing is loaded from another host. Styles stand in attributes; scripts stand in files.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "style-src": [SELF, UNSAFE_INLINE],
        "img-src": [SELF, "data:"],
        "font-src": [SELF, "data:"],
        "object-src": [NONE],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}
# What OAuth clients may do: codes with PKCE, refresh tokens that end all when one is used twice.
# Tokens are stored as digests.
OAUTH2_PROVIDER = {
    "OAUTH2_VALIDATOR_CLASS": "apps.console.oauth.Validator",
    "SCOPES_BACKEND_CLASS": "apps.console.oauth.Scopes",
    "ACCESS_TOKEN_GENERATOR": "apps.console.oauth.access_token",
    "ACCESS_TOKEN_EXPIRE_SECONDS": 3600,
    "REFRESH_TOKEN_EXPIRE_SECONDS": 30 * 86_400,
    "REFRESH_TOKEN_REUSE_PROTECTION": True,
    # Programs on a person's machine listen at any port.
    "ALLOW_LOCALHOST_LOOPBACK": True,
    "ALLOWED_REDIRECT_URI_SCHEMES": ["https", "http", "cursor", "vscode"],
    "OAUTH2_RESPONSE_TYPES_SUPPORTED": ["code"],
    "OAUTH2_GRANT_TYPES_SUPPORTED": ["authorization_code", "refresh_token"],
    "OAUTH2_TOKEN_ENDPOINT_AUTH_METHODS_SUPPORTED": ["none", "client_secret_basic", "client_secret_post"],
    "DCR_ENABLED": True,
    "DCR_REGISTRATION_PERMISSION_CLASSES": ["apps.console.oauth.HasRoom"],
    "CIMD_ENABLED": True,
    "CIMD_REGISTRATION_PERMISSION_CLASSES": ["apps.console.oauth.HasRoom"],
    **{
        f"COMPLIANT_BCP_RFC9700_{rule}": True
        for rule in (
            "IMPLICIT_GRANT",
            "PASSWORD_GRANT",
            "PKCE_METHOD",
            "ACCESS_TOKEN_TRANSPORT",
            "AUTHZ_RESPONSE_ISS",
            "TOKEN_STORAGE",
        )
    },
}
# Programs on a person's machine are sent their code by http (RFC 8252); apps.console.oauth takes it for no other place.
SILENCED_SYSTEM_CHECKS = ["oauth2_provider.W008"]
# People of an identity provider (OpenID Connect) become operators by their groups, and nobody else of it does:
# {"ops": "acme:operator,globex:viewer", "chiefs": "superuser"}. A console's group of the same name gives its permissions.
OIDC_ISSUER = env.str("GATEHOUSE_OIDC_ISSUER", default="")
OIDC_CLIENT_ID = env.str("GATEHOUSE_OIDC_CLIENT_ID", default="")
OIDC_CLIENT_SECRET = env.str("GATEHOUSE_OIDC_CLIENT_SECRET", default="")
OIDC_CLAIM = env.str("GATEHOUSE_OIDC_CLAIM", default="groups")
OIDC_GROUPS: dict[str, str] = env.json("GATEHOUSE_OIDC_GROUPS", default={})
if OIDC_ISSUER and not (OIDC_CLIENT_ID and OIDC_CLIENT_SECRET and OIDC_GROUPS):
    raise ImproperlyConfigured(
        "GATEHOUSE_OIDC_ISSUER needs GATEHOUSE_OIDC_CLIENT_ID, GATEHOUSE_OIDC_CLIENT_SECRET and GATEHOUSE_OIDC_GROUPS."
    )
# Guessing a password: ten tries for a name from one address, then a quarter of an hour of silence.
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_VERBOSE = False
AXES_CLIENT_IP_CALLABLE = "config.request_log.client_address"
# How many proxies stand before the web process. Each appends to X-Forwarded-For whom it saw; more is not believed.
PROXIES = env.int("GATEHOUSE_PROXIES", default=0)
if PRODUCTION:
    # Whether a request by plain HTTP is sent to HTTPS.
    SECURE_SSL_REDIRECT = env.bool("GATEHOUSE_SSL_REDIRECT", default=True)
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_HSTS_SECONDS = 31_536_000
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_HSTS_PRELOAD = True
    SECURE_REDIRECT_EXEMPT = ["^livez$", "^readyz$", "^metrics$"]

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "structured": {
            "()": "config.logs.Formatter",
            "processor": structlog.processors.JSONRenderer(),
            "foreign_pre_chain": [
                structlog.contextvars.merge_contextvars,
                structlog.processors.TimeStamper(fmt="iso"),
                structlog.stdlib.add_logger_name,
                structlog.stdlib.add_log_level,
                tell_exception,
            ],
        }
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "structured"}},
    "loggers": {
        # A line or two for each message says nothing: ticks are messages, several a second, for ever.
        **{
            name: {"level": "WARNING"}
            for name in ("celery.beat", "celery.worker.strategy", "celery.worker.request", "celery.app.trace")
        },
        # It names the whole address of each outgoing call, which may hold a credential.
        "httpx2": {"level": "WARNING"},
        "mcp.client": {"level": "WARNING"},
    },
    # What is logged, from this level up.
    "root": {"handlers": ["console"], "level": env.str("GATEHOUSE_LOG_LEVEL", default="INFO")},
}
# One line a request, when it is answered.
DJANGO_STRUCTLOG_STATUS_START_LOG_LEVEL = logging.DEBUG
structlog.configure(
    processors=[
        drop_routine,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.filter_by_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.StackInfoRenderer(),
        tell_exception,
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ],
    logger_factory=structlog.stdlib.LoggerFactory(),
    cache_logger_on_first_use=True,
)
