import os
import sys

import mainsite.strict  # noqa: F401 — importing it turns our warnings into errors
from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mainsite.settings")
execute_from_command_line(sys.argv)
