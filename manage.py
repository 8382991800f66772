#!/usr/bin/env python
"""Run a management command of Gatehouse."""

import os
import sys

try:
    from django.core.management import execute_from_command_line
except ImportError:
    sys.exit("Django is not installed for this Python: run it with .venv/bin/python, which bin/up makes.")

from config.unreachable import told_in_a_sentence

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    with told_in_a_sentence(1):
        execute_from_command_line(sys.argv)
