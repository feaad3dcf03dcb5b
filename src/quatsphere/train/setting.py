"""What surrounds the loop: files, processes, device, whoever listens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quatsphere.files.run_folder import RunFolder
from quatsphere.train.parallel import Team
from quatsphere.train.progress import Reporter
from quatsphere.train.signals import StopSwitch


@dataclass
class Setting:
    """The surroundings of one run in one process."""

    run: RunFolder
    team: Team
    device: torch.device
    reporter: Reporter
    stop: StopSwitch
