"""docs/deploy/kubernetes.yaml against the schemas of Kubernetes: `python -m tests.packaging.kubernetes_manifests`.

The schemas come with the package `kubernetes-validate` (70 MB), which is installed into an environment of its own, so
it is not part of `make test`. A test of the suite compares the manifests with the image, the settings and the metrics.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.packaging.processes import run

MANIFESTS = Path(__file__).resolve().parents[2] / "docs" / "deploy" / "kubernetes.yaml"
PACKAGE = "kubernetes-validate==1.37.0"
VERSIONS = ("1.25", "1.37")  # the oldest that we name, and the newest that the package has


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="jobscheduler-kubernetes-") as home:
        run([sys.executable, "-m", "venv", home])
        run([Path(home, "bin", "pip"), "install", "--quiet", PACKAGE])
        for version in VERSIONS:
            command = [Path(home, "bin", "kubernetes-validate"), "--strict", "--kubernetes-version", version, MANIFESTS]
            print(run(command).strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
