"""The operator's front door: the admin site with its dashboard, health and metrics endpoints, and the doctor.

It looks at every app below and changes nothing by itself; an operator's actions call the services of the app
that owns the thing.
"""
