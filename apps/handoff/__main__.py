"""`python -m apps.handoff`, which is what `bin/handoff` runs."""

import sys

from apps.handoff.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
