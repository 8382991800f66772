from django.apps import AppConfig


class GatehouseConfig(AppConfig):
    name = "gatehouse_client.django"
    label = "gatehouse"
    verbose_name = "Gatehouse"
    default_auto_field = "django.db.models.BigAutoField"
