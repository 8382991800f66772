from datetime import timedelta

from django.utils import timezone

from apps.core.ticks import tick
from apps.principals import services
from apps.principals.tenancy import acting_as_system


@tick(every=timedelta(hours=1))
def forget_lapsed_clients() -> None:
    with acting_as_system("lapsed OAuth clients"):
        services.forget_lapsed(now=timezone.now())
