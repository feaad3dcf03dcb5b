"""python -m quatsphere."""

import sys

from quatsphere.cli import main

sys.exit(main())
