from apps.handoff.cli import COMMANDS
from apps.handoff.management.commands._base import HandoffCommand


class Command(HandoffCommand):
    help = COMMANDS["leave"].help
    verb = COMMANDS["leave"]
