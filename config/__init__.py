"""How the product is assembled: settings, routes, processes."""

from config.celery import app as celery_app

__all__ = ["VERSION", "celery_app"]

VERSION = "0.2.0"
