"""The tutorial goes as it is written, in an empty folder, against a hub that runs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.db import connection

from tests.server import Server

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0


def blocks() -> list[str]:
    text = (ROOT / "docs" / "workers.md").read_text(encoding="utf-8")
    return re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.ci
@pytest.mark.django_db(transaction=True)
def test_the_tutorial_goes_as_it_is_written(server: Server, tmp_path: Path) -> None:
    python = shlex.quote(sys.executable)
    script = re.sub(r'(?:"\$PRODUCT"/)?\.venv/bin/python', lambda _: python, "\n".join(blocks()))
    database = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}").geturl()

    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database, "GATEHOUSE_URL": server.url, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.replace('": ', '":')
    assert '"summary":"7 words, 0.04 minutes"' in said
    assert '"worker_id":"reading-time"' in said
    assert '"effective_tier":"untrusted"' in said
    assert '"word":"txet","found":"text"' in said.replace(", ", ",")
    assert '"tool_name":"estimate_reading_time"' in said
    assert '"summary":"3 words, 0.01 minutes"' in said or '"words":3' in said
    assert "effective tier verified" in said
    assert '"status":"unregistered"' in said
    (folder,) = tmp_path.iterdir()
    assert {file.name for file in folder.iterdir()} >= {"worker_kit.py", "reading_time.py", "key.json"}
