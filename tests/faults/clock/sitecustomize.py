"""A wall clock that falls back by an hour twice a second: for a process that has this folder on PYTHONPATH.

Python imports `sitecustomize` before anything else; whoever takes `time.time` or `datetime` later takes these.
`TEST_CLOCK_START` shifts the clock by so many seconds from the beginning.
"""

import datetime
import os
import time

_true_time, _begin = time.time, time.monotonic()
_start = float(os.environ.get("TEST_CLOCK_START", "0"))


def _time() -> float:
    return _true_time() + _start - 3600 * int(2 * (time.monotonic() - _begin))


class _Datetime(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "_Datetime":
        return cls.fromtimestamp(_time(), tz)


time.time = _time
time.time_ns = lambda: int(_time() * 1e9)
datetime.datetime = _Datetime  # type: ignore[misc]
