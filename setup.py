"""The description on the package index: the README without pictures and links to files, which lead nowhere there."""

import re
from pathlib import Path

from setuptools import setup

PICTURES = re.compile(r"^!\[[^]]*\]\([^)]*\)\n+", re.MULTILINE)
LINKS_TO_FILES = re.compile(r"\[([^]]*)\]\((?!https?:)[^)]*\)")

readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
setup(
    long_description=LINKS_TO_FILES.sub(r"\1", PICTURES.sub("", readme)),
    long_description_content_type="text/markdown",
)
