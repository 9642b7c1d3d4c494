"""A clone of this project as a stranger has it, with an empty HOME: commands that docs and recipes show run in it.

The clone has what is committed. Variables that say where packages come from (pip's, proxies, certificates) stay.
"""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = ("PIP_", "UV_", "SSL_", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NETRC", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def clone(folder: Path) -> Path:
    """Clone this project into a folder that does not exist yet."""
    git = shutil.which("git")
    assert git, "git is one of the three things that the README asks for"
    subprocess.run([git, "clone", "--quiet", "--no-local", str(ROOT), str(folder)], check=True)
    return folder


def environment(home: Path, path: str) -> dict[str, str]:
    """Variables of a new user whose programs lie on `path`."""
    kept = {name: value for name, value in os.environ.items() if name.upper().startswith(KEPT)}
    return {"PATH": path, "HOME": str(home), "LANG": "C", "LC_ALL": "C", **kept}
