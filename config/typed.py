"""What a person types to run the product: the installed command, or the scripts of a working copy."""

from pathlib import Path

PRODUCT = Path(__file__).resolve().parent.parent


def typed(verb: str) -> str:
    """`verb` is up, demo, doctor or another verb of these."""
    if not (PRODUCT / "bin").is_dir():
        return f"gatehouse {verb}"
    if verb == "doctor":
        return ".venv/bin/python manage.py doctor"
    return f"bin/{verb}" if verb in {"up", "demo"} else f"bin/up {verb}"
