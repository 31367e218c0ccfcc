"""The description on the package index: the README, whose pictures and links to files lead nowhere there as they are.

With PUBLIC_URL, the address of the files of this version, they are absolute; without it they are left out.
"""

import os
import re
from pathlib import Path

from setuptools import setup

PICTURES = re.compile(r"^!\[[^]]*\]\([^)]*\)\n+", re.MULTILINE)
LINKS_TO_FILES = re.compile(r"\[([^]]*)\]\((?!https?:)([^)]*)\)")

readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
if url := os.environ.get("PUBLIC_URL", "").rstrip("/"):
    readme = LINKS_TO_FILES.sub(rf"[\1]({url}/\2)", readme)
else:
    readme = LINKS_TO_FILES.sub(r"\1", PICTURES.sub("", readme))
setup(long_description=readme, long_description_content_type="text/markdown")
