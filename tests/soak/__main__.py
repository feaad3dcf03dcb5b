"""`python -m tests.soak`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as under pytest: `helpers` and `soak` are found

from soak.runner import main

sys.exit(main())
