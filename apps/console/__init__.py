"""The operator's pages: the admin site with its home, health and metrics endpoints, and the doctor.

It reads every app below and changes nothing by itself. An operator's actions call the services of the app that owns
the row.
"""
