from django.apps import AppConfig


class MCPConfig(AppConfig):
    name = "apps.mcp"

    def ready(self) -> None:
        from apps.mcp import announcements  # noqa: PLC0415  # the apps below must be ready first

        announcements.connect()
