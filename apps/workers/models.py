"""MCP workers, the versions of their tools, their offers, the outcome of calls, and the sources of discovery."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from apps.core.errors import Conflict, NotFound, RateLimited
from apps.principals.models import Principal, TenantModel
from apps.workers.trust import RENEW_BEFORE, Tier, calls_per_hour, effects_of, higher


class UnknownWorker(NotFound):
    """No MCP worker of this id is registered, or another principal has registered it."""

    code = "unknown_worker"


class WorkerRateLimited(RateLimited):
    """The MCP worker has received all calls that its limit and its tier allow for now."""

    code = "worker_rate_limited"


class State(models.TextChoices):
    READY = "ready"
    DEGRADED = "degraded"
    MAINTENANCE = "maintenance"
    OFFLINE = "offline"
    QUARANTINED = "quarantined"


class Reach(models.TextChoices):
    """The verdict of the probes on a worker's endpoint."""

    UNKNOWN = "unknown", "not probed yet"
    UP = "up"
    DOWN = "down"


class SourceKind(models.TextChoices):
    """How a source lists workers."""

    PULL = "pull", "one known MCP endpoint"
    STATIC = "static", "a YAML file"
    ETCD = "etcd"
    CONSUL = "consul", "Consul"


# Only an operator ends a quarantine; a heartbeat does not.
TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    **{state: frozenset(State) - {state} for state in (State.READY, State.DEGRADED, State.MAINTENANCE, State.OFFLINE)},
    State.QUARANTINED: frozenset({State.OFFLINE}),
}

ROUTABLE: Final = frozenset({State.READY})
"""States in which plans may use a worker."""

REPORTED: Final[Mapping[str, State]] = {
    "healthy": State.READY,
    "degraded": State.DEGRADED,
    "maintenance": State.MAINTENANCE,
    "offline": State.OFFLINE,
}
"""The state that each status of a heartbeat stands for."""

DOWN_AFTER: Final = 3
UP_AFTER: Final = 2


def pause_after(faults: int) -> timedelta:
    """Return how long to wait after so many faults in a row: five seconds at first, five minutes at most."""
    return timedelta(seconds=min(5 * 2.0 ** min(faults - 1, 10), 300))


NOT_REMEMBERED: Final = -1
"""Lower than every epoch: memory does not hold the worker."""


class Registry(TenantModel):
    """Two counters of a tenant's registry, for those who keep copies of it.

    `epoch` changes with everything that plans depend on, `history_epoch` with the figures of calls.
    """

    epoch = models.BigIntegerField(default=0)
    history_epoch = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant"], name="workers_registry_one_a_tenant")]
        verbose_name_plural = "registries"


class SigningKey(TenantModel):
    """A public key that an operator enrolled. Manifests that it signs are trusted up to its ceiling."""

    key_id = models.CharField(max_length=100)
    public_key = models.CharField(max_length=200)
    ceiling = models.CharField(max_length=10, choices=Tier)
    enrolled_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "key_id"], name="workers_signingkey_id_once"),
        ]
        permissions = [("operate_signingkey", "Can enroll and revoke keys of MCP workers")]

    def __str__(self) -> str:
        return self.key_id


class WorkerQuerySet(models.QuerySet["Worker"]):
    def light(self) -> "WorkerQuerySet":
        """Without the manifest, which may be long. It is read when it is used."""
        return self.defer("manifest")

    def registered(self) -> "WorkerQuerySet":
        return self.filter(unregistered_at=None)

    def trusted(self) -> "WorkerQuerySet":
        return self.exclude(effective_tier=Tier.UNTRUSTED)

    def unremembered(self) -> "WorkerQuerySet":
        return self.filter(remembered_at_epoch__lt=models.F("described_at_epoch"))


class Worker(TenantModel):
    """One MCP worker: its latest manifest, its trust and its health.

    The row stays when the worker is unregistered: it keeps its history and may be registered again.
    """

    worker_id = models.CharField(max_length=100)
    principal = models.ForeignKey(
        Principal,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
        help_text="Registered it, and may speak for it.",
    )
    endpoint = models.CharField(max_length=2000)
    capabilities = ArrayField(models.CharField(max_length=100), default=list)
    constraints = models.JSONField(default=dict)
    hints = models.JSONField(default=dict)
    manifest = models.JSONField(help_text="The registration as it came, signature included.")
    effective_tier = models.CharField(max_length=10, choices=Tier)
    tier_reason = models.CharField(max_length=300)
    approved_at = models.DateTimeField(null=True, help_text="When an operator last approved a tool of it.")
    signing_key = models.ForeignKey(
        SigningKey, on_delete=models.PROTECT, null=True, related_name="workers", db_index=False
    )
    signed_at = models.DateTimeField(null=True, help_text="When the latest accepted signature was made.")
    trust_ends_at = models.DateTimeField(
        null=True, help_text="End of the signature. The worker registers again to keep its trust."
    )
    void_until = models.DateTimeField(null=True, help_text="Signatures made up to this moment are refused.")
    state = models.CharField(max_length=12, choices=State, default=State.READY)
    current_load = models.FloatField(default=0)
    available = models.BooleanField(default=True)
    beats = models.BooleanField(
        default=True,
        help_text="It sends heartbeats. A discovered worker that sends none is only probed.",
    )
    reported = models.CharField(
        max_length=12,
        choices=State,
        default=State.READY,
        help_text="The state that its last heartbeat reported.",
    )
    last_heartbeat_at = models.DateTimeField()
    reach = models.CharField(max_length=8, choices=Reach, default=Reach.UNKNOWN)
    probes_against = models.SmallIntegerField(default=0, help_text="Probes in a row that contradict `reach`.")
    probe_at = models.DateTimeField(db_default=Now(), help_text="Time of the next probe.")
    probed_at = models.DateTimeField(null=True)
    probe_fault = models.CharField(max_length=300, null=True)
    drift = models.CharField(max_length=300, null=True, help_text="The difference of its tools from its manifest.")
    registered_at = models.DateTimeField()
    unregistered_at = models.DateTimeField(null=True)
    described_at_epoch = models.BigIntegerField(
        default=0, help_text="The registry's epoch when its manifest last changed or it was unregistered."
    )
    remembered_at_epoch = models.BigIntegerField(
        default=NOT_REMEMBERED, help_text="The epoch at which memory was last brought up to date with it."
    )

    objects = WorkerQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "worker_id"], name="workers_worker_id_once"),
            models.CheckConstraint(condition=Q(state__in=State.values), name="workers_worker_state_known"),
            models.CheckConstraint(
                condition=Q(effective_tier__in=Tier.values), name="workers_worker_effective_tier_known"
            ),
            models.CheckConstraint(
                condition=Q(effective_tier=Tier.UNTRUSTED)
                | Q(signing_key__isnull=False, signed_at__isnull=False, trust_ends_at__isnull=False),
                name="workers_worker_trust_is_signed",
            ),
            models.CheckConstraint(
                condition=Q(reach__in=Reach.values, reported__in=State.values), name="workers_worker_reach_known"
            ),
        ]
        # No index holds a column that a heartbeat changes: so PostgreSQL updates the row in place (HOT).
        indexes = [
            # Serves health.probe(), every second.
            models.Index(
                name="workers_worker_probe",
                fields=["probe_at"],
                condition=Q(unregistered_at=None) & ~Q(state="quarantined"),
            ),
            # Serves memory.remember(); nearly empty.
            models.Index(
                name="workers_worker_unremembered",
                fields=["tenant", "id"],
                condition=Q(remembered_at_epoch__lt=models.F("described_at_epoch")),
            ),
            # Serves registry.lapse_trust().
            models.Index(
                name="workers_worker_lapsing",
                fields=["trust_ends_at"],
                condition=~Q(effective_tier=Tier.UNTRUSTED),
            ),
        ]
        permissions = [("operate_worker", "Can quarantine, release and unregister MCP workers")]
        verbose_name = "MCP worker"

    def __str__(self) -> str:
        return self.worker_id

    @property
    def is_to_register_again(self) -> bool:
        """Whether its trust had ended, or was soon to end, at its last heartbeat."""
        return self.trust_ends_at is not None and self.trust_ends_at - self.last_heartbeat_at <= RENEW_BEFORE

    def tier_at(self, now: datetime) -> Tier:
        """Its tier at a moment. Trust ends with the signature, even before `lapse_trust` has stored that."""
        has_ended = self.trust_ends_at is not None and self.trust_ends_at <= now
        return Tier.UNTRUSTED if has_ended else Tier(self.effective_tier)

    def calls_per_hour(self, tier: Tier) -> float:
        """How many calls an hour it may be sent; one with approved tools as many as a verified one at least."""
        limit = self.constraints.get("rate_limit_per_hour")
        return calls_per_hour(limit, tier if self.approved_at is None else higher(tier, Tier.VERIFIED))

    def move_to(self, state: State) -> None:
        """Change the state in memory; services lock and save.

        :raises Conflict: `illegal_transition`.
        """
        if state not in TRANSITIONS[State(self.state)]:
            raise Conflict(f"{self.worker_id} cannot go from {self.state} to {state}.", code="illegal_transition")
        self.state = state

    def note_answer(self, *, answered: bool) -> None:
        """Judge in memory by one more probe. The first answer of an unknown endpoint counts at once."""
        seen = Reach.UP if answered else Reach.DOWN
        enough = 1 if answered and self.reach == Reach.UNKNOWN else UP_AFTER if answered else DOWN_AFTER
        self.probes_against += 1
        if seen == self.reach or self.probes_against >= enough:
            self.reach, self.probes_against = seen, 0

    @property
    def condition(self) -> State:
        """Its state by its own report, the probes and its drift; the age of its heartbeat is not considered."""
        reported = State(self.reported)
        if reported in {State.MAINTENANCE, State.OFFLINE}:
            return reported
        if self.reach == Reach.DOWN:
            return State.OFFLINE
        return State.DEGRADED if self.drift else reported


class ToolVersion(TenantModel):
    """One version of a tool, named by the hash of its contract. Workers with the same contract share the row. It never changes."""

    uid = models.CharField(max_length=32)
    name = models.CharField(max_length=200)
    description = models.TextField()
    input_schema = models.JSONField()
    output_schema = models.JSONField()
    side_effects = models.JSONField(null=True)
    first_seen_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "uid"], name="workers_toolversion_uid_once")]

    @property
    def effects(self) -> list[str]:
        return sorted(effects_of(self.side_effects))


class OfferQuerySet(models.QuerySet["Offer"]):
    def current(self) -> "OfferQuerySet":
        return self.filter(withdrawn_at=None, worker__unregistered_at=None)

    def with_contract(self) -> "OfferQuerySet":
        """With the tool version, and the worker without its manifest."""
        return self.select_related("worker", "tool").defer("worker__manifest")


class Offer(TenantModel):
    """A worker's offer of one tool version, with the figures of its calls. An offer that ends is withdrawn, not deleted."""

    worker = models.ForeignKey(Worker, on_delete=models.PROTECT, related_name="offers", db_index=False)
    tool = models.ForeignKey(ToolVersion, on_delete=models.PROTECT, related_name="offers", db_index=False)
    name = models.CharField(max_length=200)
    offered_at = models.DateTimeField()
    withdrawn_at = models.DateTimeField(null=True)
    approved_at = models.DateTimeField(
        null=True, help_text="When an operator approved this version of the tool; it may be used whatever the tier."
    )
    runs = models.BigIntegerField(default=0)
    successes = models.BigIntegerField(default=0)
    total_cost = models.DecimalField(max_digits=14, decimal_places=6, default=0)
    recent_seconds = ArrayField(
        models.FloatField(), default=list, help_text="Durations of the latest calls, oldest first."
    )

    objects = OfferQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "worker", "tool"], name="workers_offer_once"),
            models.UniqueConstraint(
                fields=["tenant", "worker", "name"],
                condition=Q(withdrawn_at=None),
                name="workers_offer_one_current_a_name",
            ),
            models.CheckConstraint(
                condition=Q(successes__gte=0, successes__lte=models.F("runs")), name="workers_offer_successes_are_runs"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.worker_id}: {self.name}"


class Call(TenantModel):
    """The outcome of one call that is not yet counted in its offer. A periodic job counts and deletes these rows."""

    offer = models.ForeignKey(Offer, on_delete=models.PROTECT, related_name="+", db_index=False)
    ok = models.BooleanField()
    seconds = models.FloatField()
    cost = models.DecimalField(max_digits=14, decimal_places=6)


class Allowance(TenantModel):
    """The rate limit of a worker: each call takes its share of an hour, and at most one hour ahead may be taken.

    So an idle worker may receive an hour's calls at once, and then as many as the hour goes on to allow.
    """

    worker = models.ForeignKey(Worker, on_delete=models.PROTECT, related_name="+", db_index=False)
    taken_until = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "worker"], name="workers_allowance_one_a_worker"),
        ]


class WorkerEvent(TenantModel):
    """An event in the history of a worker. Old events are deleted, except for a worker's last one."""

    class Kind(models.TextChoices):
        REGISTERED = "registered"
        REPLACED = "replaced", "manifest replaced"
        TRUST = "trust", "trust changed"
        STATE = "state", "state changed"
        DRIFTED = "drifted", "tools differ from the manifest"
        UNREGISTERED = "unregistered"

    worker = models.ForeignKey(Worker, on_delete=models.PROTECT, related_name="events", db_index=False)
    kind = models.CharField(max_length=12, choices=Kind)
    state = models.CharField(max_length=12, choices=State)
    detail = models.CharField(max_length=300)
    at = models.DateTimeField()

    class Meta:
        indexes = [
            # Serves the history of one worker in the console, newest first.
            models.Index(name="workers_workerevent_history", fields=["tenant", "worker", "-id"]),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.at:%Y-%m-%d %H:%M:%S}"


class WorkerSource(TenantModel):
    """A source that lists MCP workers, added by an operator. Its workers are registered for its principal.

    `next_at` is the time of the next look.
    """

    name = models.CharField(max_length=100)
    kind = models.CharField(max_length=8, choices=SourceKind)
    address = models.CharField(max_length=2000)
    options = models.JSONField(
        default=dict, help_text="What to look for there, and defaults for servers without a manifest."
    )
    sealed_secret = models.TextField(
        default="", editable=False, help_text="Password or token for the source, encrypted."
    )
    principal = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    enabled = models.BooleanField(default=True)
    every = models.DurationField(help_text="How often the MCP workers that it lists are asked for their tools.")
    next_at = models.DateTimeField()
    looked_at = models.DateTimeField(null=True)
    faults = models.IntegerField(default=0, help_text="Failed looks in a row.")
    fault = models.CharField(max_length=300, null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="workers_workersource_name_once"),
        ]
        indexes = [
            # Serves discovery.discover(), every second.
            models.Index(name="workers_workersource_next", fields=["next_at"], condition=Q(enabled=True)),
        ]

    def __str__(self) -> str:
        return self.name


class SourceEntry(TenantModel):
    """An entry of a source: an endpoint or a manifest, and the worker that was registered from it."""

    source = models.ForeignKey(WorkerSource, on_delete=models.CASCADE, related_name="entries", db_index=False)
    key = models.CharField(max_length=500)
    stated = models.JSONField(help_text="The content of the entry: an endpoint, or a whole manifest.")
    worker = models.ForeignKey(Worker, on_delete=models.PROTECT, null=True, related_name="entries", db_index=False)
    named_at = models.DateTimeField()
    next_at = models.DateTimeField()
    asked_at = models.DateTimeField(null=True)
    faults = models.IntegerField(default=0)
    fault = models.CharField(max_length=300, null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "source", "key"], name="workers_sourceentry_key_once"),
        ]
        indexes = [
            # Serves discovery.discover(), every second.
            models.Index(name="workers_sourceentry_next", fields=["next_at"]),
            # Serves the question which entries list a worker.
            models.Index(name="workers_sourceentry_worker", fields=["worker"]),
        ]
        verbose_name_plural = "source entries"

    def __str__(self) -> str:
        return self.key
