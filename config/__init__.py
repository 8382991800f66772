"""How the product is assembled: settings, routes, processes."""

from config.celery import app as celery_app

__all__ = ["celery_app"]
