"""Workers, the versions of their tools, what each offers, and what became of it."""

from datetime import datetime, timedelta
from typing import Final

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from apps.principals.models import Principal, TenantModel
from apps.workers.errors import IllegalTransition
from apps.workers.hysteresis import Reach, Standing
from apps.workers.states import TRANSITIONS, SourceKind, State
from apps.workers.trust import RENEW_BEFORE, Tier

NOT_REMEMBERED: Final = -1
"""Before every epoch that a worker can be remembered as of."""


class Registry(TenantModel):
    """A tenant's registry as a whole: two counters that say whether what was read from it still holds.

    `epoch` moves with whatever changes who may be planned for, `history_epoch` with what calls have shown.
    """

    epoch = models.BigIntegerField(default=0)
    history_epoch = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant"], name="workers_registry_one_a_tenant")]
        verbose_name_plural = "registries"

    def __str__(self) -> str:
        return f"epoch {self.epoch}"


class SigningKey(TenantModel):
    """A public key that an operator enrolled: manifests that it signed are trusted up to its ceiling."""

    key_id = models.CharField(max_length=100)
    public_key = models.CharField(max_length=200)
    ceiling = models.CharField(max_length=10, choices=Tier)
    enrolled_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "key_id"], name="workers_signingkey_id_once"),
            models.CheckConstraint(condition=Q(ceiling__in=Tier.values), name="workers_signingkey_ceiling_known"),
        ]
        permissions = [("operate_signingkey", "Can enroll and revoke keys of workers")]

    def __str__(self) -> str:
        return self.key_id


class WorkerQuerySet(models.QuerySet["Worker"]):
    def named(self, worker_id: str) -> "WorkerQuerySet":
        return self.filter(worker_id=worker_id)

    def light(self) -> "WorkerQuerySet":
        """Without the manifest, which may be long; who asks a row for it reads it then."""
        return self.defer("manifest")

    def registered(self) -> "WorkerQuerySet":
        return self.filter(unregistered_at=None)

    def trusted(self) -> "WorkerQuerySet":
        return self.exclude(effective_tier=Tier.UNTRUSTED)

    def unremembered(self) -> "WorkerQuerySet":
        return self.filter(remembered_at_epoch__lt=models.F("described_at_epoch"))


class Worker(TenantModel):
    """One worker as its latest manifest describes it, with how far it is trusted and how it is.

    The row outlives its registration: an unregistered worker keeps its history and comes back as the same.
    """

    worker_id = models.CharField(max_length=100)
    principal = models.ForeignKey(
        Principal,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
        help_text="Who registered it and speaks for it.",
    )
    endpoint = models.CharField(max_length=2000)
    capabilities = ArrayField(models.CharField(max_length=100), default=list)
    constraints = models.JSONField(default=dict)
    hints = models.JSONField(default=dict)
    manifest = models.JSONField(help_text="The registration as it came, signature included.")
    claimed_tier = models.CharField(max_length=10, choices=Tier)
    effective_tier = models.CharField(max_length=10, choices=Tier)
    tier_reason = models.CharField(max_length=300)
    signing_key = models.ForeignKey(
        SigningKey, on_delete=models.PROTECT, null=True, related_name="workers", db_index=False
    )
    signed_at = models.DateTimeField(null=True, help_text="When the youngest signature that was taken was made.")
    signed_digest = models.CharField(max_length=32, null=True, help_text="What that signature was made over.")
    trust_ends_at = models.DateTimeField(
        null=True, help_text="When the signature ends. A worker that wants trust beyond it registers anew."
    )
    void_until = models.DateTimeField(null=True, help_text="Signatures made up to this moment count no more.")
    state = models.CharField(max_length=12, choices=State, default=State.READY)
    current_load = models.FloatField(default=0)
    available = models.BooleanField(default=True)
    beats = models.BooleanField(
        default=True,
        db_default=True,
        help_text="It announces itself and sends heartbeats; one that was found and sends none is probed.",
    )
    reported = models.CharField(
        max_length=12,
        choices=State,
        default=State.READY,
        db_default=State.READY,
        help_text="How it says that it is, whatever else is known.",
    )
    last_heartbeat_at = models.DateTimeField()
    reach = models.CharField(max_length=8, choices=Reach, default=Reach.UNKNOWN, db_default=Reach.UNKNOWN)
    probes_against = models.SmallIntegerField(
        default=0, db_default=0, help_text="Probes in a row that contradict `reach`."
    )
    probe_at = models.DateTimeField(db_default=Now(), help_text="When it is probed next.")
    probe_fence = models.BigIntegerField(default=0, db_default=0)
    probed_at = models.DateTimeField(null=True)
    probe_fault = models.CharField(max_length=300, null=True)
    drift = models.CharField(
        max_length=300, null=True, help_text="What its endpoint offers otherwise than its manifest says."
    )
    registered_at = models.DateTimeField()
    unregistered_at = models.DateTimeField(null=True)
    described_at_epoch = models.BigIntegerField(
        default=0, help_text="The registry's epoch when its manifest last changed or it left."
    )
    remembered_at_epoch = models.BigIntegerField(
        default=NOT_REMEMBERED, help_text="Which of these epochs memory knows it as of; a tick follows."
    )

    objects = WorkerQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "worker_id"], name="workers_worker_id_once"),
            models.CheckConstraint(condition=Q(state__in=State.values), name="workers_worker_state_known"),
            models.CheckConstraint(condition=Q(claimed_tier__in=Tier.values), name="workers_worker_claimed_tier_known"),
            models.CheckConstraint(
                condition=Q(effective_tier__in=Tier.values), name="workers_worker_effective_tier_known"
            ),
            models.CheckConstraint(
                condition=Q(effective_tier=Tier.UNTRUSTED)
                | Q(signing_key__isnull=False, signed_at__isnull=False, trust_ends_at__isnull=False),
                name="workers_worker_trust_is_signed",
            ),
            models.CheckConstraint(
                condition=Q(current_load__gte=0, current_load__lte=1), name="workers_worker_load_is_a_share"
            ),
            models.CheckConstraint(
                condition=Q(reach__in=Reach.values, reported__in=State.values), name="workers_worker_reach_known"
            ),
        ]
        # None on what a heartbeat writes: so its row is overwritten in place, and no index is touched. The look for late
        # workers reads them all instead, which is little beside what their heartbeats cost.
        indexes = [
            # Serves services.probe(), every second.
            models.Index(
                name="workers_worker_probe",
                fields=["probe_at"],
                condition=Q(unregistered_at=None) & ~Q(state="quarantined"),
            ),
            # Serves selectors.search(): whose tools have changed since an index was built.
            models.Index(name="workers_worker_described", fields=["tenant", "described_at_epoch"]),
            # Serves services.remember(): holds next to nothing.
            models.Index(
                name="workers_worker_unremembered",
                fields=["tenant", "id"],
                condition=Q(remembered_at_epoch__lt=models.F("described_at_epoch")),
            ),
            # Serves services.lapse_trust(): trusted workers by the end of their signature.
            models.Index(
                name="workers_worker_lapsing",
                fields=["trust_ends_at"],
                condition=~Q(effective_tier=Tier.UNTRUSTED),
            ),
        ]
        permissions = [("operate_worker", "Can quarantine, release and unregister workers")]

    def __str__(self) -> str:
        return self.worker_id

    @property
    def is_to_register_again(self) -> bool:
        """Whether, at its last heartbeat, its trust had ended or was soon to end."""
        return self.trust_ends_at is not None and self.trust_ends_at - self.last_heartbeat_at <= RENEW_BEFORE

    def tier_at(self, now: datetime) -> Tier:
        """Its tier: trust ends with the signature, whether or not that has been noted yet."""
        has_ended = self.trust_ends_at is not None and self.trust_ends_at <= now
        return Tier.UNTRUSTED if has_ended else Tier(self.effective_tier)

    # Mutators change memory only. Services lock, save and commit.

    def move_to(self, state: State) -> None:
        if state not in TRANSITIONS[State(self.state)]:
            raise IllegalTransition(f"{self.worker_id} cannot go from {self.state} to {state}.")
        self.state = state

    @property
    def standing(self) -> Standing:
        return Standing(Reach(self.reach), self.probes_against)

    @property
    def condition(self) -> State:
        """How it is by all that is known but the age of its heartbeat: its own word, what probes see, what it offers."""
        reported = State(self.reported)
        if reported in {State.MAINTENANCE, State.OFFLINE}:
            return reported
        if self.reach == Reach.DOWN:
            return State.OFFLINE
        return State.DEGRADED if self.drift else reported


class ToolVersion(TenantModel):
    """One version of a tool, named by the hash of its contract. Workers with the same contract share the row; it never changes."""

    uid = models.CharField(max_length=32)
    name = models.CharField(max_length=200)
    description = models.TextField()
    input_schema = models.JSONField()
    output_schema = models.JSONField()
    side_effects = models.JSONField(null=True)
    effects = ArrayField(models.CharField(max_length=20))
    first_seen_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "uid"], name="workers_toolversion_uid_once")]

    def __str__(self) -> str:
        return self.name


class OfferQuerySet(models.QuerySet["Offer"]):
    def standing(self) -> "OfferQuerySet":
        return self.filter(withdrawn_at=None, worker__unregistered_at=None)

    def with_contract(self) -> "OfferQuerySet":
        """With the version of the tool, and the worker as far as a choice between offers looks at it."""
        return self.select_related("worker", "tool").defer("worker__manifest")


class Offer(TenantModel):
    """That a worker runs one version of a tool, and what its calls have shown. Withdrawn, not deleted, when the worker drops it."""

    worker = models.ForeignKey(Worker, on_delete=models.PROTECT, related_name="offers", db_index=False)
    tool = models.ForeignKey(ToolVersion, on_delete=models.PROTECT, related_name="offers", db_index=False)
    name = models.CharField(max_length=200)
    offered_at = models.DateTimeField()
    withdrawn_at = models.DateTimeField(null=True)
    runs = models.BigIntegerField(default=0)
    successes = models.BigIntegerField(default=0)
    total_seconds = models.FloatField(default=0)
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
                name="workers_offer_one_standing_a_name",
            ),
            models.CheckConstraint(
                condition=Q(successes__gte=0, successes__lte=models.F("runs")), name="workers_offer_successes_are_runs"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.worker_id}: {self.name}"


class Call(TenantModel):
    """One call's outcome, appended by whoever made it and folded into its offer by a tick: rows here are not yet counted."""

    offer = models.ForeignKey(Offer, on_delete=models.PROTECT, related_name="+", db_index=False)
    ok = models.BooleanField()
    seconds = models.FloatField()
    cost = models.DecimalField(max_digits=14, decimal_places=6)

    def __str__(self) -> str:
        return f"call {self.pk}"


class Allowance(TenantModel):
    """How far ahead a worker's calls are taken: each takes its share of an hour, and an hour ahead is all there is.

    So a worker that has been idle may be sent an hour's calls at once, and then as many as the hour goes on to allow.
    """

    worker = models.ForeignKey(Worker, on_delete=models.PROTECT, related_name="+", db_index=False)
    taken_until = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "worker"], name="workers_allowance_one_a_worker"),
        ]

    def __str__(self) -> str:
        return f"{self.worker} until {self.taken_until:%Y-%m-%d %H:%M:%S}"


class WorkerEvent(TenantModel):
    """What happened to a worker: registered, changed, trusted more or less, fell silent, came back, left. Never changed.

    What is old goes (`services.forget_events`), but for a worker's last event.
    """

    class Kind(models.TextChoices):
        REGISTERED = "registered"
        REPLACED = "replaced", "manifest replaced"
        TRUST = "trust", "trust changed"
        STATE = "state", "state changed"
        DRIFTED = "drifted", "offers other than its manifest says"
        UNREGISTERED = "unregistered"

    worker = models.ForeignKey(Worker, on_delete=models.PROTECT, related_name="events", db_index=False)
    kind = models.CharField(max_length=12, choices=Kind)
    state = models.CharField(max_length=12, choices=State)
    detail = models.CharField(max_length=300)
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(kind__in=["registered", "replaced", "trust", "state", "drifted", "unregistered"]),
                name="workers_workerevent_kind_known",
            ),
            models.CheckConstraint(condition=Q(state__in=State.values), name="workers_workerevent_state_known"),
        ]
        indexes = [
            # Serves the admin's health history of one worker, newest first.
            models.Index(name="workers_workerevent_history", fields=["tenant", "worker", "-id"]),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.at:%Y-%m-%d %H:%M:%S}"


class WorkerSource(TenantModel):
    """Where an operator has said that workers are to be looked for. Its principal answers for what is found there.

    `cursor` is how far the source has been read: a revision, an index, a digest. `next_at` is when it is looked at next,
    or when the claim of whoever looks just now runs out; `fence` counts claims, and only the last one writes.
    """

    name = models.CharField(max_length=100)
    kind = models.CharField(max_length=8, choices=SourceKind)
    address = models.CharField(max_length=2000)
    settings = models.JSONField(
        default=dict, help_text="What to look for there, and what is said of a worker that says nothing."
    )
    sealed_secret = models.TextField(
        default="", db_default="", editable=False, help_text="What it is told so that it answers, sealed."
    )
    principal = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    enabled = models.BooleanField(default=True)
    every = models.DurationField(help_text="How often a place that it names is asked what it offers.")
    cursor = models.CharField(max_length=100, default="")
    next_at = models.DateTimeField()
    fence = models.BigIntegerField(default=0)
    looked_at = models.DateTimeField(null=True)
    faults = models.IntegerField(default=0, help_text="Looks in a row that have failed.")
    fault = models.CharField(max_length=300, null=True)
    added_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="workers_workersource_name_once"),
            models.CheckConstraint(condition=Q(kind__in=SourceKind.values), name="workers_workersource_kind_known"),
            models.CheckConstraint(
                condition=Q(every__gte=timedelta(seconds=5)), name="workers_workersource_not_too_often"
            ),
        ]
        indexes = [
            # Serves services.discover(), every second.
            models.Index(name="workers_workersource_next", fields=["next_at"], condition=Q(enabled=True)),
        ]

    def __str__(self) -> str:
        return self.name


class PlaceQuerySet(models.QuerySet["Place"]):
    def standing(self) -> "PlaceQuerySet":
        return self.filter(gone_at=None)


class Place(TenantModel):
    """A place that a source names: where a worker is said to be, and what came of asking there.

    `worker` is the one that was registered from here. `next_at` and `fence` are as those of the source.
    """

    source = models.ForeignKey(WorkerSource, on_delete=models.CASCADE, related_name="places", db_index=False)
    key = models.CharField(max_length=500)
    stated = models.JSONField(help_text="What the source says of it: an endpoint, or a whole manifest.")
    worker = models.ForeignKey(Worker, on_delete=models.PROTECT, null=True, related_name="places", db_index=False)
    named_at = models.DateTimeField()
    gone_at = models.DateTimeField(null=True)
    next_at = models.DateTimeField()
    fence = models.BigIntegerField(default=0)
    asked_at = models.DateTimeField(null=True)
    faults = models.IntegerField(default=0)
    fault = models.CharField(max_length=300, null=True)

    objects = PlaceQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "source", "key"], name="workers_place_key_once"),
        ]
        indexes = [
            # Serves services.discover(), every second.
            models.Index(name="workers_place_next", fields=["next_at"], condition=Q(gone_at=None)),
            # Serves a probe that has found a worker changed, and the question who else names it.
            models.Index(name="workers_place_worker", fields=["worker"]),
        ]

    def __str__(self) -> str:
        return self.key
