from apps.handoff.cli import OUTBOX
from apps.handoff.management.commands._base import HandoffCommand


class Command(HandoffCommand):
    help = "Reports that sessions write for others: put, list, take."
    verbs = OUTBOX
