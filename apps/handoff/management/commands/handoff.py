from apps.handoff.cli import HANDOFF
from apps.handoff.management.commands._base import HandoffCommand


class Command(HandoffCommand):
    help = "What one session leaves to the next one: status, clean, sync, harvest, place."
    verbs = HANDOFF
