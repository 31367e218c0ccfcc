"""Manifests against the schemas of Kubernetes and KEDA: `python -m tests.packaging.kubernetes_manifests`.

The schemas come with the packages `kubernetes-validate` of PyPI (70 MB) and `@kubernetes-models/keda` of npm, which are
installed into a temporary directory. The suite itself uses `kubernetes-validate` where it is installed, and compares
the manifests with the image, the settings and the metrics (`tests/packaging/test_deploying.py`).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import yaml

from tests.packaging.processes import run

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
PROGRAM = "kubernetes-validate"
PACKAGE = f"{PROGRAM}==1.37.0"
VERSIONS = ("1.25", "1.37")  # the oldest that we name, and the newest that the package has
KEDA_PACKAGES = ("@kubernetes-models/keda@2.0.0", "typescript@5.9.3")
TSC = ("tsc", "--strict", "--noEmit", "--module", "nodenext", "--target", "es2022", "--skipLibCheck")
SCALER = """
import type { IScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject";
export const scaler: IScaledObject = %s;
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="jobscheduler-kubernetes-") as name:
        home = Path(name)
        run([sys.executable, "-m", "venv", home])
        run([home / "bin" / "pip", "install", "--quiet", PACKAGE])
        for version in VERSIONS:
            print(validate(home / "bin" / PROGRAM, version))
        if shutil.which("npm") is None:
            print("keda.yaml was not looked at: npm is missing")
        else:
            compile_scaler(home)
            print("keda.yaml: valid")
    return 0


def validate(program: Path, version: str, manifests: Path = DEPLOY / "kubernetes.yaml") -> str:
    """Return what the program says; raise AssertionError if a resource is not valid or has an unknown field."""
    return run([program, "--strict", "--kubernetes-version", version, manifests]).strip()


def compile_scaler(home: Path, manifest: Path = DEPLOY / "keda.yaml") -> None:
    """Compile the manifest as a value of the type that is made of KEDA's schema: unknown fields are errors, too."""
    (home / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
    run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *KEDA_PACKAGES], cwd=home)
    (home / "keda.ts").write_text(SCALER % json.dumps(yaml.safe_load(manifest.read_text())))
    run([home / "node_modules" / ".bin" / TSC[0], *TSC[1:], "keda.ts"], cwd=home)


if __name__ == "__main__":
    sys.exit(main())
