"""What is asked before each run of a job: whether its device may go on.

A campaign of a higher priority goes before the next run. Among those of one priority a turn is over between rounds, so
that what is compared with each other was measured together.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass

from pipeline.features.lab import queue as lab_queue


@dataclass(slots=True)
class Fence:
    """The fence of a job whose device this host has; `gives_way` where it is another campaign's turn.

    `refused` are campaigns that this host cannot measure, as they are at that time.
    """

    session: lab_queue.LabSession
    job: lab_queue.LabJob
    stop: threading.Event
    refused: Collection[str]
    number: int | None = None
    gives_way: bool = False

    def __call__(self, _device: str = "", number: int | None = None) -> str:
        """Why the device may not go on, or ""; `number` is the round of the run that is to begin."""
        if self.stop.is_set():
            return "interrupted"
        is_next = None not in (number, self.number) and number != self.number
        try:
            turn = self.session.turn(self.job, list(self.refused), between_rounds=is_next)
        except lab_queue.SessionLost as error:
            return f"the lease was lost: {error}"
        if turn.state not in lab_queue.OPEN:
            return f"the job is {turn.state or 'gone'}"
        self.number, self.gives_way = number, bool(turn.gives_way_to)
        return f"gives way to {turn.gives_way_to}" if self.gives_way else ""
