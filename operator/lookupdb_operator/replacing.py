"""``replace`` for decisions that mostly find that nothing has changed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

R = TypeVar("R")

if TYPE_CHECKING:
    from dataclasses import replace as replace  # so that members and their types are checked at each call
else:

    def replace(record: R, /, **members: Any) -> R:
        """``dataclasses.replace``; ``record`` itself when every member is as it was.

        A pass of ``plan()`` asks for some forty, and most change nothing. A new record of thirty members takes twenty
        times as long as seeing that. What was decided of ``record`` also holds for it when it is the same.
        """
        for name, value in members.items():
            before = getattr(record, name)
            if before is not value and before != value:
                return dataclasses.replace(record, **members)
        return record
